#include "tool.h"
int cmd_demo(int a,char**b){(void)a;(void)b;return 0;}
