/* A program that knows libmla from its installation alone. */
#include <mla.h>

#include <stdio.h>

int main(void)
{
    mla_ctx *ctx;
    mla_info info = {.struct_size = sizeof info};
    if (mla_ctx_create(NULL, &ctx) != MLA_OK || mla_ctx_get_info(ctx, &info) != MLA_OK) {
        fprintf(stderr, "%s\n", mla_last_error());
        return 1;
    }
    printf("libmla %d on %s\n", mla_version(), info.device_name);
    mla_ctx_destroy(ctx);
    return mla_version() == MLA_VERSION_MAJOR * 10000 + MLA_VERSION_MINOR * 100 + MLA_VERSION_PATCH
               ? 0
               : 1;
}
