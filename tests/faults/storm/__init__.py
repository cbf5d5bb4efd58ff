"""`python -m tests.faults.storm --seed N --duration S` kills, stops and restarts every role at random.

- Real servers, processes and signals: SIGKILL at any instant, SIGSTOP longer than a lease and then SIGCONT (the role
  comes back as a zombie that others have taken over from), a second learner, and power cuts: all at once.
- The learner is one process, or a launcher with two ranks, each of which is killed and stopped like any other role; a
  rank that is stopped stays so beyond its deadline.
- Two controllers at times, by a fleet file that changes, rent and dismiss workers besides those of the supervisor.
- One held-out set or two are evaluated every few updates.
- With `--containers` the workers but those of the fleet are containers: compose starts them and gives them their
  notices, and starts those that were killed again.
- After the last kill the run must finish; then `checker` judges whether every promise was kept.
- The exit code is 0 only if every promise was kept and the logs hold no unexpected traceback. A storm of five minutes
  or more must also have killed often enough and met enough, and the run must have finished within a minute (`summary`);
  for a shorter one the report only lists what it lacks. After any other exit code everything that helps to find the
  cause stays in the directory that is printed.

The seed decides what is done and when; how the processes run in between is up to the machine.

| module | content |
| --- | --- |
| `storm` | one storm from its beginning to its end |
| `settings` | what the seed draws |
| `fault_injection` | the faults, and to which roles they happen |
| `processes`, `forked_roles` | the processes: found, signalled, forked and supervised |
| `fleet` | the machines that controllers start, and their fleet file |
| `containers`, `contained_worker` | workers in containers, and what runs in one |
| `roles`, `prompts`, `simulated` | what the processes run |
| `observer` | the audits during a storm, and the evidence after it |
| `summary` | what a storm did, and whether that was enough |
"""
