#include "plan_picture.h"
#include "roofline_picture.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

enum { MAX_BARS = 512, MAX_SEGMENTS = 50000, LABELLED_BARS = 48 };

static int64_t blocks_of(const plan_view *view, int64_t req)
{
    return ((int64_t)view->lengths[req] + MLA_BLOCK_TOKENS - 1) / MLA_BLOCK_TOKENS;
}

bool plan_part_is_idle(const mla_plan_part *part)
{
    return part->num_blocks == 0 && part->begin_req == part->end_req &&
           part->begin_block == part->end_block;
}

mla_status plan_view_read(plan_view *view, const mla_plan *plan)
{
    mla_status status = mla_plan_get_part(plan, 0, NULL, &view->num_parts);
    if (status != MLA_OK) {
        return status;
    }
    view->parts = tool_alloc((size_t)view->num_parts, sizeof *view->parts);
    view->most_blocks = 1;
    for (int64_t i = 0; i < view->num_parts; i++) {
        mla_plan_part *part = &view->parts[i];
        status = mla_plan_get_part(plan, i, part, NULL);
        if (status != MLA_OK) {
            return status;
        }
        view->most_blocks = part->num_blocks > view->most_blocks ? part->num_blocks
                                                                 : view->most_blocks;
        view->split_reqs += part->num_splits > 0;
        view->idle_parts += plan_part_is_idle(part);
    }
    for (int64_t r = 0; r < view->num_reqs; r++) {
        view->total_tokens += view->lengths[r];
        view->total_blocks += blocks_of(view, r);
    }
    view->mean_blocks = (double)view->total_blocks / (double)view->num_parts;
    view->balance = view->mean_blocks / (double)view->most_blocks;
    return MLA_OK;
}

/* A colour that differs from those of the requests before it: hues at the golden angle. */
static unsigned colour_of(int64_t req)
{
    double hue = fmod((double)req * 0.61803398875, 1.0) * 6.0;
    double light = req % 3 == 0 ? 0.80 : req % 3 == 1 ? 0.92 : 0.68;
    unsigned channels[3];
    for (int c = 0; c < 3; c++) {
        /* Distance of the hue from this channel's own, as a trapezoid between 0.45 and 1. */
        double turn = fmod(hue + 6.0 - 2.0 * c, 6.0);
        double away = fmin(turn, 6.0 - turn);
        double level = fmin(fmax(2.0 - away, 0.0), 1.0);
        channels[c] = (unsigned)(255.0 * light * (0.45 + 0.55 * level));
    }
    return channels[0] << 16 | channels[1] << 8 | channels[2];
}

typedef struct segment_writer {
    FILE *script;
    int64_t written;
} segment_writer;

/* Writes the segments of one part; with `labels`, the labels inside them instead. */
static void write_part(segment_writer *writer, const plan_view *view, int64_t index, bool labels)
{
    const mla_plan_part *part = &view->parts[index];
    int64_t at = 0;
    for (int64_t req = part->begin_req; req <= part->end_req && req < view->num_reqs; req++) {
        int64_t begin = req == part->begin_req ? part->begin_block : 0;
        int64_t end = req == part->end_req ? part->end_block : blocks_of(view, req);
        if (end <= begin || writer->written >= MAX_SEGMENTS) {
            continue;
        }
        double middle = (double)at + 0.5 * (double)(end - begin);
        if (labels && (double)(end - begin) > 0.035 * (double)view->most_blocks) {
            fprintf(writer->script, "%g %lld %lld\n", middle, (long long)index, (long long)req);
        } else if (!labels) {
            fprintf(writer->script, "%g %lld %lld %lld %g %g %u\n", middle, (long long)index,
                    (long long)at, (long long)(at + end - begin), (double)index - 0.4,
                    (double)index + 0.4, colour_of(req));
        }
        writer->written++;
        at += end - begin;
    }
}

bool plan_draw(const char *svg_path, const plan_view *view)
{
    assert(view->num_parts >= 1);
    int64_t bars = view->num_parts < MAX_BARS ? view->num_parts : MAX_BARS;
    bool labelled = bars <= LABELLED_BARS;
    double height = fmin(fmax((double)bars * (labelled ? 24.0 : 8.0), 120.0), 1800.0) + 170.0;
    FILE *script = gnuplot_open(svg_path, 1080, (int)height);
    if (script == NULL) {
        return false;
    }
    fprintf(script,
            "set title \"%lld requests, %lld tokens, cut into %lld parts: balance %.1f %%\" "
            "font ',16'\n"
            "set label 1 'each bar is a part, each colour and number a request; the dashed line is "
            "the mean load' at graph 0.5,1 offset 0,0.7 center textcolor rgb '#555555'\n"
            "set tmargin 4.5\nset xlabel 'load, blocks of 64 tokens'\nset ylabel 'part'\n"
            "set xrange [0:%g]\nset yrange [%g:-0.7]\nset style fill solid 1.0 border rgb "
            "'white'\nunset key\nset grid noytics\n",
            (long long)view->num_reqs, (long long)view->total_tokens, (long long)view->num_parts,
            100.0 * view->balance, 1.12 * (double)view->most_blocks, (double)bars - 0.3);
    if (labelled) {
        fprintf(script, "set ytics 1\n");
    }
    segment_writer writer = {script, 0};
    fprintf(script, "$segments << EOD\n0 0 0 0 0 0 0\n");
    for (int64_t i = 0; i < bars; i++) {
        write_part(&writer, view, i, false);
    }
    fprintf(script, "EOD\n$labels << EOD\n-1 -1 0\n");
    writer.written = 0;
    for (int64_t i = 0; labelled && i < bars; i++) {
        write_part(&writer, view, i, true);
    }
    fprintf(script, "EOD\n$loads << EOD\n-1 -1 0\n");
    for (int64_t i = 0; labelled && i < bars; i++) {
        fprintf(script, "%g %lld %d\n", 1.02 * (double)view->most_blocks, (long long)i,
                view->parts[i].num_blocks);
    }
    fprintf(script,
            "EOD\nset arrow 1 from %g, graph 0 to %g, graph 1 nohead dt 2 lw 1.5 lc rgb '#333333' "
            "front\n"
            "plot $segments using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable lw 0.7, "
            "$labels using 1:2:3 with labels font ',11' textcolor rgb '#000000', "
            "$loads using 1:2:3 with labels left font ',11' textcolor rgb '#333333'\n",
            view->mean_blocks, view->mean_blocks);
    return gnuplot_close(script, svg_path);
}
