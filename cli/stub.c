#include "tool.h"
int cmd_demo(int a,char**b){(void)a;(void)b;return 0;}
int cmd_bench(int a,char**b){(void)a;(void)b;return 0;}
int cmd_plan(int a,char**b){(void)a;(void)b;return 0;}
