/* Stands in for the commands on safetensors files when the tool is built without cJSON. */
#include "batch_file.h"
#include "tool.h"

static int not_built_in(const char *name)
{
    tool_error("%s was not built in: it needs cJSON. Install it (Debian: libcjson-dev, pkg-config) "
               "and build again",
               name);
    return TOOL_FAILED;
}

bool batch_can_save(const char *path)
{
    (void)path;
    return not_built_in("--save") == TOOL_OK;
}

bool batch_save(const char *path, const batch *input)
{
    (void)input;
    return batch_can_save(path);
}

int cmd_decode(int argc, char **argv)
{
    (void)argc;
    return not_built_in(argv[0]);
}

int cmd_pack(int argc, char **argv)
{
    (void)argc;
    return not_built_in(argv[0]);
}

int cmd_unpack(int argc, char **argv)
{
    (void)argc;
    return not_built_in(argv[0]);
}
