/* Holds a pod's namespaces: sleeps until told to end. As PID 1 of shared PID namespaces it also reaps. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { (void)sig; _exit(0); }
static void reap(int sig) { (void)sig; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
  signal(SIGINT, end), signal(SIGTERM, end), signal(SIGCHLD, reap);
  for (;;) pause();
}
