/* Stand-ins for four small programs of Chaos Mesh and Litmus that no package registry has. One file, by its name:
 *   pause COMMAND           waits for SIGCONT, then runs it
 *   nsexec [-l] -p|-n|-i PATH ... -- COMMAND       runs it in those namespaces
 *   nsutil -t PID [-p] [-n] [-i] [-m] [--] COMMAND    the same, by the process that has them
 *   memStress --workers N --size SIZE              holds N times that much until it is ended
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;
static void forward(int number) { if (child > 0) kill(child, number); }
static void wake(int number) { (void)number; }
static int failed(const char *what) { perror(what); return 125; }

static int run(char **command) { execvp(command[0], command); return failed(command[0]); }

/* The namespaces of processes change with the next fork: so the parent waits, and hands signals on. */
static int run_in(int *namespaces, int count, char **command) {
  for (int i = 0; i < count; i++) if (setns(namespaces[i], 0)) return failed("setns");
  signal(SIGTERM, forward);
  signal(SIGINT, forward);
  child = fork();
  if (!child) {
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    _exit(run(command));
  }
  int status;
  while (waitpid(child, &status, 0) < 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int nsexec(int count, char **words) {
  int found[8], n = 0, i = 1;
  for (; i < count && strcmp(words[i], "--"); i++) {
    if (!strcmp(words[i], "-l")) continue;
    if (words[i][0] != '-' || !strchr("pni", words[i][1]) || n == 8) { fprintf(stderr, "nsexec: %s?\n", words[i]); return 2; }
    if ((found[n++] = open(words[++i], O_RDONLY | O_CLOEXEC)) < 0) return failed(words[i]);
  }
  return run_in(found, n, words + i + 1);
}

static int nsutil(int count, char **words) {
  static const struct { char flag; const char *name; } KNOWN[] = {{'p', "pid"}, {'n', "net"}, {'i', "ipc"}, {'m', "mnt"}};
  const char *pid = NULL, *wanted[4];
  int found[4], n = 0, i = 1;
  for (; i < count && words[i][0] == '-' && strcmp(words[i], "--"); i++) {
    if (words[i][1] == 't') { pid = words[++i]; continue; }
    for (int k = 0; k < 4; k++) if (words[i][1] == KNOWN[k].flag) wanted[n++] = KNOWN[k].name;
  }
  if (i < count && !strcmp(words[i], "--")) i++;
  if (!pid || i >= count) { fprintf(stderr, "nsutil: -t PID and a command\n"); return 2; }
  for (int k = 0; k < n; k++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, wanted[k]);
    if ((found[k] = open(path, O_RDONLY | O_CLOEXEC)) < 0) return failed(path);
  }
  return run_in(found, n, words + i);
}

static int hold(int count, char **words) {
  double size = 0;
  int workers = 1;
  for (int i = 1; i + 1 < count; i++) {
    if (!strcmp(words[i], "--workers")) workers = atoi(words[i + 1]);
    if (!strcmp(words[i], "--size")) {
      char *unit;
      size = strtod(words[i + 1], &unit);
      const char *units = "bkmgt", *at = strchr(units, *unit | 0x20);
      for (int k = at && *unit ? at - units : 0; k > 0; k--) size *= 1024;
    }
  }
  if (size <= 0) { fprintf(stderr, "memStress: --size?\n"); return 2; }
  size_t bytes = size * workers;
  char *held = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (held == MAP_FAILED) return failed("mmap");
  memset(held, 0xa5, bytes);
  for (;;) pause();
}

int main(int count, char **words) {
  const char *name = basename(words[0]);
  if (!strcmp(name, "nsexec")) return nsexec(count, words);
  if (!strcmp(name, "nsutil")) return nsutil(count, words);
  if (!strcmp(name, "memStress")) return hold(count, words);
  signal(SIGCONT, wake);
  pause();
  return count > 1 ? run(words + 1) : 2;
}
