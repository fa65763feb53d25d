#include "roofline_picture.h"
#include "tool.h"

#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that cannot be written would show in gnuplot's own words, or, where the disk is full, not
 * at all. A pipe's reader gets the picture and nothing before it. */
static bool can_be_written(const char *path)
{
    struct stat info;
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return false;
    }
    bool ok = fstat(fileno(file), &info) == 0;
    ok = ok && (S_ISFIFO(info.st_mode) || fputc('\n', file) == '\n');
    return fclose(file) == 0 && ok;
}

/* Whether a regular file ends as a picture does: gnuplot ignores what its writes return. */
static bool is_whole(const char *path)
{
    static const char end[] = "</svg>";
    char tail[16] = "";
    struct stat info;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    bool ok = fstat(fileno(file), &info) == 0;
    if (ok && S_ISREG(info.st_mode)) {
        ok = fseek(file, -(long)(sizeof tail - 1), SEEK_END) == 0 &&
             fread(tail, 1, sizeof tail - 1, file) == sizeof tail - 1 && strstr(tail, end) != NULL;
    }
    fclose(file);
    return ok;
}

static bool is_installed(void)
{
    if (system("command -v gnuplot >/dev/null 2>&1") != 0) {
        tool_error("no picture: gnuplot is not installed (Debian: apt-get install gnuplot-nox)");
        return false;
    }
    return true;
}

bool gnuplot_can_draw(const char *svg_path)
{
    return is_installed() && tool_can_write(svg_path);
}

FILE *gnuplot_open(const char *svg_path, int width, int height)
{
    if (!is_installed()) {
        return NULL;
    }
    if (!can_be_written(svg_path)) {
        tool_error("no picture: cannot write %s", svg_path);
        return NULL;
    }
    signal(SIGPIPE, SIG_IGN);
    fflush(NULL);
    FILE *script = popen("gnuplot", "w");
    if (script == NULL) {
        tool_error("no picture: cannot start gnuplot");
        return NULL;
    }
    fprintf(script,
            "set terminal svg size %d,%d font 'sans-serif,13' background '#ffffff' noenhanced\n"
            "set output ",
            width, height);
    gnuplot_text(script, svg_path);
    fprintf(script, "\nset border lc rgb '#444444'\nset grid lc rgb '#dddddd'\n");
    return script;
}

bool gnuplot_close(FILE *script, const char *svg_path)
{
    fprintf(script, "unset output\n");
    if (pclose(script) != 0 || !is_whole(svg_path)) {
        tool_error("gnuplot could not draw %s", svg_path);
        return false;
    }
    return true;
}

void gnuplot_text(FILE *script, const char *text)
{
    fputc('"', script);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\' || *text == '`' || *text == '$') {
            fputc('\\', script);
        }
        fputc(*text, script);
    }
    fputc('"', script);
}

static void draw_roof(FILE *script, const char *name, double gflops, double memory_gbs, double from,
                      double to)
{
    double knee = gflops / memory_gbs;
    fprintf(script, "$%s << EOD\n", name);
    if (knee > from) {
        fprintf(script, "%g %g\n", from, from * memory_gbs);
    }
    fprintf(script, "%g %g\n%g %g\nEOD\n", fmin(fmax(knee, from), to), gflops, to, gflops);
}

/* The powers of ten have their labels; a range within a decade needs 2 and 5 times them too. */
static void label_speeds(FILE *script, double from, double to)
{
    for (double power = pow(10.0, floor(log10(from))); power <= to; power *= 10.0) {
        fprintf(script, "set ytics add ('%g' %g, '%g' %g)\n", 2.0 * power, 2.0 * power, 5.0 * power,
                5.0 * power);
    }
}

bool roofline_draw(const char *svg_path, const roofline *picture)
{
    assert(picture->num_points > 0 && picture->peak_gflops > 0.0 && picture->memory_gbs > 0.0);
    FILE *script = gnuplot_open(svg_path, 1180, 600);
    if (script == NULL) {
        return false;
    }
    double knee = picture->peak_gflops / picture->memory_gbs;
    double from = knee / 8.0, to = knee * 8.0, low = picture->peak_gflops / 4.0;
    double high = fmax(picture->peak_gflops, picture->product_gflops);
    for (int32_t i = 0; i < picture->num_points; i++) {
        const roofline_point *point = &picture->points[i];
        from = fmin(from, point->flops_per_byte / 2.0);
        to = fmax(to, point->flops_per_byte * 2.0);
        low = fmin(low, point->gflops / 2.0);
        high = fmax(high, point->gflops);
    }
    fprintf(script, "set title ");
    gnuplot_text(script, picture->title);
    fprintf(script, " font ',16'\nset label 1 ");
    gnuplot_text(script, picture->subtitle);
    fprintf(script,
            " at graph 0.5,1 offset 0,0.7 center textcolor rgb '#555555'\nset tmargin 4.5\n"
            "set logscale xy\nset xrange [%g:%g]\nset yrange [%g:%g]\n"
            "set xlabel 'arithmetic intensity, FLOP per byte of cache, queries and output'\n"
            "set ylabel 'speed, GFLOP/s'\n"
            "set key outside right center spacing 1.3 samplen 1.5 Left reverse\n",
            from, to, low, high * 1.6);
    label_speeds(script, low, high * 1.6);
    draw_roof(script, "roof", picture->peak_gflops, picture->memory_gbs, from, to);
    if (picture->product_gflops > 0.0) {
        draw_roof(script, "roof2", picture->product_gflops, picture->memory_gbs, from, to);
    }
    for (int32_t i = 0; i < picture->num_points; i++) {
        fprintf(script, "$point%d << EOD\n%g %g\nEOD\n", i, picture->points[i].flops_per_byte,
                picture->points[i].gflops);
    }
    fprintf(script, "plot $roof with lines lw 2.5 lc rgb '#333333' title ");
    gnuplot_text(script, picture->peak_label);
    if (picture->product_gflops > 0.0) {
        fprintf(script, ", $roof2 with lines lw 2 dt 2 lc rgb '#888888' title ");
        gnuplot_text(script, picture->product_label);
    }
    static const int shapes[] = {7, 5, 9, 11, 13, 6, 4, 8, 10, 12};
    static const char *const colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
                                          "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#111111"};
    for (int32_t i = 0; i < picture->num_points; i++) {
        fprintf(script, ", $point%d with points pt %d ps 1.3 lw 1.5 lc rgb '%s' title ", i,
                shapes[i % 10], colours[(i + i / 10) % 10]);
        gnuplot_text(script, picture->points[i].label);
    }
    fprintf(script, "\n");
    return gnuplot_close(script, svg_path);
}
