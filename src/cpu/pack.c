#include "pack.h"

#include "formats.h"

/* Where one KV head of one token lies on both sides. */
typedef struct packed_row {
    uint16_t *values;
    uint8_t *data;
    uint8_t *scales; /* NULL for native rows */
} packed_row;

/* False when the row's slot is to be skipped. */
static bool find_row(const mla_pack_args *a, int64_t row_idx, packed_row *row)
{
    int64_t token = row_idx / a->h_kv, head = row_idx % a->h_kv;
    int64_t slot = a->slots != NULL ? a->slots[token] : token;
    if (slot < 0) {
        return false;
    }
    int64_t in_page = slot % a->page_size;
    uint8_t *page = (uint8_t *)a->cache + slot / a->page_size * a->cache_stride[0];
    row->values = (uint16_t *)a->rows + token * a->rows_stride[0] + head * a->rows_stride[1];
    row->data = page + in_page * a->cache_stride[1] + head * a->cache_stride[2];
    row->scales = NULL;
    if (a->kv_format == MLA_KV_FP8_656) {
        row->scales = row->data + MLA_FP8_656_SCALES_AT;
    } else if (a->kv_format == MLA_KV_FP8_584) {
        row->scales = page + a->page_size * MLA_FP8_584_DATA_BYTES +
                      in_page * MLA_FP8_584_SCALE_BYTES;
    }
    return true;
}

void mla_cpu_pack(const mla_pack_args *args, int32_t num_threads)
{
#pragma omp parallel for num_threads(num_threads)
    for (int64_t i = 0; i < args->num_tokens * args->h_kv; i++) {
        packed_row row;
        if (find_row(args, i, &row)) {
            mla_row_encode(args->kv_format, args->d_qk, row.values, row.data, row.scales);
        }
    }
}

void mla_cpu_unpack(const mla_pack_args *args, int32_t num_threads)
{
#pragma omp parallel for num_threads(num_threads)
    for (int64_t i = 0; i < args->num_tokens * args->h_kv; i++) {
        packed_row row;
        float values[576];
        if (find_row(args, i, &row)) {
            mla_row_decode(args->kv_format, args->dtype, args->d_qk, row.data, row.scales, values);
            for (int64_t c = 0; c < args->d_qk; c++) {
                row.values[c] = mla_elem_from_f32(args->dtype, values[c]);
            }
        }
    }
}
