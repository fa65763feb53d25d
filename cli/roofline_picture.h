/* A roofline diagram: measured points under the limits of memory and arithmetic, by gnuplot. */
#ifndef MLA_CLI_ROOFLINE_PICTURE_H
#define MLA_CLI_ROOFLINE_PICTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct roofline_point {
    char label[96];
    double flops_per_byte;
    double gflops;
} roofline_point;

typedef struct roofline {
    const char *title;
    const char *subtitle;
    double peak_gflops; /* FP32 multiply-adds */
    const char *peak_label;
    double product_gflops; /* a second, higher roof such as bf16 products; 0: none */
    const char *product_label;
    double memory_gbs;
    const roofline_point *points;
    int32_t num_points;
} roofline;

/* Whether gnuplot is there and the picture can be written, to be asked before the work that it will
 * show. Prints the reason and returns false. */
bool gnuplot_can_draw(const char *svg_path);

/* Starts gnuplot with an SVG of this size; NULL, with a message, when it is not there. */
FILE *gnuplot_open(const char *svg_path, int width, int height);

/* Ends the script; true when gnuplot drew the picture. */
bool gnuplot_close(FILE *script, const char *svg_path);

/* Writes text between double quotes with what gnuplot would interpret escaped. */
void gnuplot_text(FILE *script, const char *text);

bool roofline_draw(const char *svg_path, const roofline *picture);

#endif
