/* Keeps a pod's namespaces open until SIGINT or SIGTERM. As PID 1 of a shared PID namespace it also reaps zombies. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { (void)sig; _exit(0); }
static void reap(int sig) { (void)sig; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
  signal(SIGINT, end), signal(SIGTERM, end), signal(SIGCHLD, reap);
  for (;;) pause();
}
