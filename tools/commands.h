// The commands of keel. argv[0] is the command's name; the result is the exit code. One clear line on standard error
// where one fails.
#ifndef KEEL_TOOLS_COMMANDS_H
#define KEEL_TOOLS_COMMANDS_H

int keel_cmd_report(int argc, char **argv);
int keel_cmd_check(int argc, char **argv);
int keel_cmd_diff(int argc, char **argv);
int keel_cmd_dump(int argc, char **argv);
int keel_cmd_import(int argc, char **argv);
int keel_cmd_lab(int argc, char **argv);
int keel_cmd_doctor(int argc, char **argv);

#endif
