#include "safetensors_samples.h"

#include <string.h>

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

const safetensors_sample safetensors_samples[] = {
    {"empty_object", "{}", 0, 0, NULL},
    {"padded_with_spaces", "{}      ", 0, 0, NULL},
    {"one_tensor", "{" TENSOR("q", "BF16", "[2,3]", "0", "12") "}", 0, 12, NULL},
    {"scalar", "{" TENSOR("x", "F32", "[]", "0", "4") "}", 0, 4, NULL},
    {"empty_tensor", "{" TENSOR("x", "I64", "[0,5]", "0", "0") "}", 0, 0, NULL},
    {"metadata", "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("q", "F16", "[4]", "0", "8") "}",
     0, 8, NULL},
    {"tensors_out_of_order",
     "{" TENSOR("b", "U8", "[3]", "8", "11") "," TENSOR("a", "F64", "[1]", "0", "8") "}", 0, 11,
     NULL},
    {"name_with_escapes", "{" TENSOR("a\\\"\\u00e9\\n", "U8", "[1]", "0", "1") "}", 0, 1, NULL},
    {"fp8", "{" TENSOR("kv_cache", "F8_E4M3", "[1,1,656]", "0", "656") "}", 0, 656, NULL},

    {"header_beyond_the_file", "{}", 100, 0, "truncated"},
    {"header_of_gigabytes", "{}", (uint64_t)1 << 40, 0, "no safetensors file"},
    {"header_of_2_to_the_64", "{}", UINT64_MAX, 0, "no safetensors file"},
    {"no_header", "", 0, 0, "does not begin with '{'"},
    {"an_array", "[]", 0, 0, "does not begin with '{'"},
    {"not_json", "{q}", 0, 0, "not a JSON object"},
    {"cut_json", "{\"q\":{\"dtype\":\"BF16\"", 0, 0, "not a JSON object"},
    {"two_objects", "{}{}", 0, 0, "garbage"},
    {"deep", "{\"a\":[[[[[[[[[[[[1]]]]]]]]]]]]}", 0, 0, "nests deeper"},
    {"entry_is_a_number", "{\"q\":5}", 0, 0, "not an object"},
    {"no_dtype", "{\"q\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "has no dtype"},
    {"unknown_dtype", "{" TENSOR("q", "BF17", "[1]", "0", "2") "}", 0, 2, "BF17"},
    {"no_shape", "{\"q\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 0, 1, "has no shape"},
    {"shape_is_text", "{" TENSOR("q", "U8", "\"1\"", "0", "1") "}", 0, 1, "has no shape"},
    {"negative_dimension", "{" TENSOR("q", "U8", "[-1]", "0", "1") "}", 0, 1, "whole number"},
    {"broken_dimension", "{" TENSOR("q", "U8", "[1.5]", "0", "1") "}", 0, 1, "whole number"},
    {"huge_dimension", "{" TENSOR("q", "U8", "[1e300]", "0", "1") "}", 0, 1, "whole number"},
    {"overflowing_shape",
     "{" TENSOR("q", "F64", "[4294967296,4294967296,4294967296]", "0", "8") "}", 0, 8,
     "more bytes than exist"},
    {"wrapping_shape", "{" TENSOR("q", "F32", "[4294967296,1073741825]", "0", "4") "}", 0, 4, "q"},
    {"nine_dimensions", "{" TENSOR("q", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 0, 1,
     "more than 8"},
    {"no_offsets", "{\"q\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, 1, "data_offsets"},
    {"three_offsets", "{" TENSOR("q", "U8", "[1]", "0,1", "1") "}", 0, 1, "data_offsets"},
    {"negative_offset", "{" TENSOR("q", "U8", "[1]", "-1", "0") "}", 0, 1, "data_offsets"},
    {"offsets_reversed", "{" TENSOR("q", "U8", "[1]", "1", "0") "}", 0, 1, "do not lie within"},
    {"offsets_beyond_the_file", "{" TENSOR("q", "U8", "[9]", "0", "9") "}", 0, 8,
     "do not lie within"},
    {"shape_larger_than_offsets", "{" TENSOR("q", "BF16", "[2,3]", "0", "6") "}", 0, 6,
     "takes 12 bytes"},
    {"overlap", "{" TENSOR("a", "U8", "[4]", "0", "4") "," TENSOR("b", "U8", "[4]", "2", "6") "}",
     0, 6, "overlap"},
    {"gap", "{" TENSOR("a", "U8", "[4]", "0", "4") "," TENSOR("b", "U8", "[4]", "6", "10") "}", 0,
     10, "belong to no tensor"},
    {"bytes_left_over", "{" TENSOR("a", "U8", "[4]", "0", "4") "}", 0, 5, "after the last tensor"},
    {"same_name_twice",
     "{" TENSOR("a", "U8", "[4]", "0", "4") "," TENSOR("a", "U8", "[4]", "4", "8") "}", 0, 8,
     "appears twice"},
};

const size_t num_safetensors_samples = sizeof safetensors_samples / sizeof safetensors_samples[0];

size_t safetensors_sample_bytes(const safetensors_sample *sample, uint8_t *bytes)
{
    size_t header_bytes = strlen(sample->header);
    uint64_t claimed = sample->claimed_bytes != 0 ? sample->claimed_bytes : header_bytes;
    if (bytes != NULL) {
        for (int i = 0; i < 8; i++) {
            bytes[i] = (uint8_t)(claimed >> 8 * i);
        }
        memcpy(bytes + 8, sample->header, header_bytes);
        memset(bytes + 8 + header_bytes, 0, sample->data_bytes);
    }
    return 8 + header_bytes + sample->data_bytes;
}
