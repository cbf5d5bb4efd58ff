"""One rule of the product broken at a time, what that endangers, and the tests that must notice.

- `old` occurs exactly once in its file, so that a mutation cannot quietly come to change nothing.
- `caught_by` names few and fast tests, at least one of which fails; `mutate` runs them on a copy of the project.
"""

from dataclasses import dataclass

LUA = "echo_queue/queue/library/"


@dataclass(frozen=True)
class Mutation:
    """A mutation: in `file`, `old` becomes `new`. `danger`: what a run that is built like that can suffer."""

    name: str
    danger: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def apply(self, text: str) -> str:
        """The file's text with the rule broken. Raises `ValueError` unless there is exactly one place for it."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places in {self.file} instead of one")
        return text.replace(self.old, self.new)


MUTATIONS = (
    Mutation(
        "committed before it is saved",
        "a learner that dies in between loses groups: trained for the queue, in no checkpoint",
        "learner/leader.py",
        """\
        self._trained.clear()
""",
        """\
        self._queue.commit("{:04d}/{:08d}".format(*self._version), history.trained)
        self._trained.clear()
""",
        ("tests/learner/test_training_loop.py::test_the_queue_hears_of_a_checkpoint_only_once_it_is_whole",),
    ),
    Mutation(
        "MAXLEN on a work stream",
        "Redis drops the oldest tasks of a large window without a word",
        LUA + "state.lua",
        "redis.call('XADD', run.K[stream], '*', unpack(words))",
        "redis.call('XADD', run.K[stream], 'MAXLEN', 1000, '*', unpack(words))",
        ("tests/queue/test_admission.py::test_a_window_of_any_size_keeps_all_its_tasks",),
    ),
    Mutation(
        "a consumer deleted with its leases",
        "a worker that has leased nothing for an hour loses what it still generates",
        LUA + "lease_expiry.lua",
        "if held == 0 then",
        "if true then",
        ("tests/queue/test_bounded_steps.py::test_a_worker_that_only_renews_is_not_forgotten",),
    ),
    Mutation(
        "a consumer group that starts at $",
        "tasks added before their group was made, or made again, are never delivered",
        LUA + "operator.lua",
        "redis.pcall('XGROUP', 'CREATE', key, name, '0', 'MKSTREAM')",
        "redis.pcall('XGROUP', 'CREATE', key, name, '$', 'MKSTREAM')",
        ("tests/queue/test_leases.py::test_a_consumer_group_that_is_made_again_hands_out_what_there_is",),
    ),
    Mutation(
        "retries inside the Redis client",
        "a command that was carried out is sent again below the queue, where no token identifies it",
        "echo_queue/connections/connect.py",
        '"retry": Retry(NoBackoff(), 0),\n        "socket_timeout"',
        '"retry": Retry(NoBackoff(), 3),\n        "socket_timeout"',
        ("tests/connections/test_connect.py::test_a_connection_repeats_no_command_by_itself",),
    ),
    Mutation(
        "dedupe removed",
        "a task that two workers complete is trained twice",
        LUA + "worker.lua",
        "  if stream == 'replay' then\n    local first",
        "  if stream == 'nowhere' then\n    local first",
        ("tests/queue/test_completion.py::test_a_task_completed_twice_is_trained_once",),
    ),
    Mutation(
        "everysec instead of always",
        "a machine that fails takes up to a second of acknowledged work with it",
        "echo_queue/services/redis_server.py",
        '"appendfsync": "always"',
        '"appendfsync": "everysec"',
        ("tests/services/test_redis_server.py::test_each_write_is_on_disk_before_it_is_acknowledged",),
    ),
    Mutation(
        "no check at drain",
        "groups older than S are trained",
        LUA + "learner.lua",
        "return run.v - group.oldest > run.s",
        "return false",
        ("tests/queue/test_lateness.py::test_a_group_over_the_bound_goes_back_in_the_same_call",),
    ),
    Mutation(
        "no check at completion",
        "what can never be trained any more fills replay, and its worker goes on serving old weights",
        LUA + "worker.lua",
        "if run.v - oldest > run.s or abandoned(run, lineage, newest) then",
        "if false then",
        ("tests/queue/test_lateness.py::test_a_completion_that_is_already_too_late_frees_its_lease",),
    ),
    Mutation(
        "abandoned weights are admissible",
        "groups made by weights of a line that no longer exists are trained",
        LUA + "state.lua",
        "return line ~= lineage or version > bound",
        "return false",
        ("tests/queue/test_lineage.py::test_abandoned_weights_are_unpublished_and_their_work_goes_back",),
    ),
    Mutation(
        "a bad group is buried wherever it is",
        "a task that was generated again is dead because of an earlier group",
        LUA + "learner.lua",
        "if stream ~= 'replay' or entry ~= args[3] then return { 0 } end",
        "if stream ~= 'replay' then return { 0 } end",
        ("tests/queue/test_lineage.py::test_a_bad_group_is_buried_at_its_place_only",),
    ),
    Mutation(
        "what a learner has in hand may be buried",
        "a prompt is dead and then trained",
        LUA + "operator.lua",
        "not redis.call('ZSCORE', run.K.ready, entry .. ' ' .. args[1]) then return { 0 } end",
        "false then return { 0 } end",
        ("tests/queue/test_lineage.py::test_what_a_learner_has_in_hand_is_not_buried",),
    ),
    Mutation(
        "a task that was buried by hand is completed",
        "what an operator gave up is trained all the same, though the answer was that it is dead",
        LUA + "worker.lua",
        "if stream == 'dead' and rest == BY_HAND then",
        "if false then",
        ("tests/queue/test_sets.py::test_what_an_operator_buried_stays_dead_though_its_worker_completes_it",),
    ),
    Mutation(
        "other prompts under a name that checkpoints hold",
        "after a loss of Redis, prompts that no model ever saw count as trained",
        LUA + "backlog.lua",
        "if known and known:match('^%S+') ~= digest then",
        "if false then",
        (
            "tests/queue/test_sets.py::test_other_prompts_under_a_name_that_checkpoints_hold_are_refused_and_the_same_are_known",
        ),
    ),
    Mutation(
        "a learner begins where other prompts came first",
        "the ids in its checkpoints settle prompts of another set of that name",
        LUA + "learner.lua",
        "elseif not lists(known, stored:match('^%S+')) then",
        "elseif false then",
        (
            "tests/queue/test_sets.py::test_a_learner_does_not_begin_where_other_prompts_came_first_and_nothing_has_changed",
        ),
    ),
    Mutation(
        "a checkpoint that does not say whose prompts its ids are",
        "after a loss of Redis nobody can tell other prompts of the same name from the ones that were trained",
        "learner/leader.py",
        "return {**self._newest.sets, **digests}",
        "return {}",
        ("tests/learner/recovery/test_resume.py::test_a_checkpoint_names_the_prompts_that_its_ids_mean",),
    ),
    Mutation(
        "any name for a set",
        "a drain whose reply was lost cannot be repeated, and its groups are out of reach",
        LUA + "backlog.lua",
        "if #name > SET_NAME_MAX or not name:match(SET_NAME) then",
        "if false then",
        ("tests/queue/test_sets.py::test_a_name_that_could_not_be_part_of_an_id_is_refused_by_client_and_server",),
    ),
    Mutation(
        "a source that is needed for ever",
        "a line appended to a file of prompts ends a run that has had all of them for long",
        "echo_queue/submission/declaration.py",
        "if counts is not None and counts.whole:",
        "if False:",
        (
            "tests/submission/test_submission.py::test_a_run_goes_on_with_a_set_that_has_arrived_whatever_its_source_has_become",
        ),
    ),
    Mutation(
        "rules that anybody may change",
        "another process changes S under a learner that lives, and drain hands out what that may not train",
        LUA + "operator.lua",
        "if redis.call('EXISTS', K.rules) == 0 then",
        "if true then",
        ("tests/queue/test_run_rules.py::test_a_living_learner_keeps_its_bound_whatever_another_process_brings",),
    ),
    Mutation(
        "rules that a learner does not bring along",
        "the queue and the learner go by different bounds",
        LUA + "learner.lua",
        "redis.call('HSET', K.rules, unpack(args, 6, sets - 1))",
        "",
        ("tests/queue/test_run_rules.py::test_rules_change_with_the_lineage_and_the_learner_before_it_is_fenced",),
    ),
    Mutation(
        "what a changed configuration excludes is buried",
        "a smaller group size buries all that is ready, and the learner ends as if a worker were broken",
        "echo_queue/records/validation.py",
        "if group.lineage < self.newest.lineage and error.cause in LIMITED:",
        "if False:",
        (
            "tests/queue/test_bad_groups.py::test_what_a_changed_configuration_excludes_is_generated_again_and_nobody_is_blamed",
        ),
    ),
    Mutation(
        "an unfit group is sent back wherever it is",
        "a group that was generated again is thrown away because of an earlier one",
        LUA + "learner.lua",
        "if entry ~= args[3] or stream ~= 'replay' then return { 0 } end",
        "if stream ~= 'replay' then return { 0 } end",
        ("tests/queue/test_bad_groups.py::test_a_group_is_sent_back_as_unfit_at_its_place_only",),
    ),
    Mutation(
        "the base model for trained weights that are gone",
        "a learner whose checkpoints are damaged begins again, unasked",
        "learner/recovery/checkpoint.py",
        "            if damaged:\n                break\n",
        "",
        ("tests/learner/recovery/test_resume.py::test_trained_weights_that_are_gone_are_not_taken_for_the_base_model",),
    ),
    Mutation(
        "no mark where a lineage begins at the base model",
        "the first checkpoint of a learner that was overtaken is taken for the newest, and others' work is lost",
        "learner/recovery/checkpoint.py",
        "    _put_manifest(store, manifest)\n    return manifest\n\n\ndef prune",
        "    if begin is not None:\n        _put_manifest(store, manifest)\n    return manifest\n\n\ndef prune",
        (
            "tests/learner/recovery/test_resume.py::test_a_learner_that_begins_at_the_base_model_is_not_overtaken_unseen",
        ),
    ),
    Mutation(
        "a run that has work left may finish",
        "workers leave while prompts wait, and the run calls itself over",
        LUA + "learner.lua",
        "if args[2] ~= '1' and outside(run) > 0 then return 0 end",
        "",
        ("tests/queue/test_lineage.py::test_a_run_with_anything_left_to_train_does_not_finish",),
    ),
    Mutation(
        "no fence",
        "a learner that hung and was replaced wakes up and moves the queue",
        LUA + "state.lua",
        "if lineage < run.lineage then",
        "if false then",
        ("tests/queue/test_lineage.py::test_a_learner_that_was_taken_over_is_fenced_in_every_move",),
    ),
    Mutation(
        "turns not counted",
        "after a fail-over that forgot a drain its groups are drained, and trained, again",
        LUA + "state.lua",
        "if not repeated and tonumber(turn) ~= tonumber(last) + 1 then",
        "if false then",
        (
            "tests/learner/recovery/test_resume.py::test_a_learner_whose_moves_were_forgotten_is_told_and_the_next_one_goes_on",
        ),
    ),
    Mutation(
        "a drain that does not recognise its repetition",
        "groups whose drain lost its reply are out of reach until the learner restarts",
        LUA + "learner.lua",
        "local taken = repeat_drain(run, turn) or fresh_drain",
        "local taken = fresh_drain",
        ("tests/faults/proxy/test_proxy.py::test_every_move_survives_every_fault",),
    ),
    Mutation(
        "a lease that does not recognise its repetition",
        "tasks whose lease lost its reply wait until it expires, and cost an attempt",
        LUA + "worker.lua",
        "tasks = repeat_lease(run, worker, token) or fresh_lease",
        "tasks = fresh_lease",
        ("tests/faults/proxy/test_proxy.py::test_every_move_survives_every_fault",),
    ),
    Mutation(
        "a partial rollout older than the bound handed out",
        "a task goes from worker to worker, each of which finishes what can no longer be trained",
        LUA + "worker.lua",
        "if run.v - oldest > run.s or newest > run.published",
        "if newest > run.published",
        ("tests/queue/test_progress.py::test_a_partial_older_than_the_bound_is_dropped_and_counted",),
    ),
    Mutation(
        "a partial rollout by abandoned weights handed out",
        "tokens of weights that a rewind left behind are continued, and trained",
        LUA + "worker.lua",
        "or oldest > newest or abandoned(run, lineage, newest) then",
        "or oldest > newest then",
        ("tests/queue/test_progress.py::test_a_partial_by_abandoned_weights_is_dropped",),
    ),
    Mutation(
        "a partial rollout that outlives its task",
        "Redis fills with partial rollouts of what was trained long ago",
        LUA + "worker.lua",
        "  redis.call('ZADD', run.K.ready, oldest, place .. ' ' .. id)\n  clear(run, stream, entry, id)\n"
        "  drop_partial(run, id)\n",
        "  redis.call('ZADD', run.K.ready, oldest, place .. ' ' .. id)\n  clear(run, stream, entry, id)\n",
        ("tests/queue/test_progress.py::test_completion_burial_failure_and_training_end_a_partial",),
    ),
    Mutation(
        "progress of a lost lease accepted",
        "a worker that was taken for dead overwrites newer progress with older",
        LUA + "worker.lua",
        "  if not is_task(stream) or not held_by(run, stream, entry, worker) then return 0 end\n  if words[4]",
        "  if words[4]",
        ("tests/queue/test_progress.py::test_a_worker_that_lost_its_lease_keeps_nothing_and_is_told",),
    ),
    Mutation(
        "a partial rollout is not checked",
        "what one worker wrote by hand fails every worker that leases the task, or passes for tokens of newer weights",
        "echo_queue/queue/payloads.py",
        "        if said != told:\n",
        "        if False:\n",
        ("tests/queue/test_progress.py::test_a_malformed_partial_is_dropped_and_counted_and_its_task_starts_anew",),
    ),
    Mutation(
        "one step of a sweep and no more",
        "what a fleet hands back is free after minutes, while its partial rollouts get too old",
        "learner/housekeeper.py",
        "if swept.leases < SWEEP_MAX:",
        "if True:",
        ("tests/learner/test_housekeeper.py::test_all_that_was_handed_back_is_free_after_one_sweep",),
    ),
    Mutation(
        "no cap on attempts",
        "a task that kills its worker kills them all, for ever",
        LUA + "lease_expiry.lua",
        "if attempt < run.max_attempts then",
        "if true then",
        ("tests/queue/test_leases.py::test_a_poisonous_task_dies_with_its_reason_and_can_be_revived",),
    ),
    Mutation(
        "progress costs an attempt",
        "a task longer than machines live dies of kills alone, although nothing of it is lost",
        LUA + "lease_expiry.lua",
        "local gets_on = not failed and tokens > (tonumber(task.kept) or 0)",
        "local gets_on = false",
        ("tests/queue/test_progress.py::test_a_task_that_gets_on_never_dies_however_many_workers_are_taken_away",),
    ),
    Mutation(
        "a lease without progress costs no attempt",
        "a task that kills its worker once it has come so far kills them all, for ever",
        LUA + "lease_expiry.lua",
        "{ attempt = attempt, kept = tokens }",
        "{ attempt = attempt }",
        (
            "tests/queue/test_progress.py::test_a_lease_that_runs_out_with_no_more_kept_than_the_one_before_costs_an_attempt",
        ),
    ),
    Mutation(
        "no bound on what a partial rollout claims",
        "a worker that claims ever more tokens keeps alive a task that kills its workers",
        LUA + "worker.lua",
        "if not at or tonumber(tokens) > run.group_max_tokens then",
        "if not at then",
        (
            "tests/queue/test_progress.py::test_a_worker_that_claims_ever_more_keeps_no_task_alive_beyond_what_a_group_may_have",
        ),
    ),
    Mutation(
        "leases run out while nobody sweeps",
        "after an outage every lease expires at once, and living workers' work is done twice",
        LUA + "state.lua",
        "local step = math.min(since, math.floor(run.lease_ms / CLOCK_STEPS_PER_LEASE))",
        "local step = since",
        (
            "tests/queue/test_leases.py::test_after_an_absence_living_workers_may_renew_before_leases_are_taken_back",
            "tests/queue/test_clock.py::test_living_workers_keep_their_leases_when_the_clock_is_set",
        ),
    ),
    Mutation(
        "the queue's clock goes back with Redis'",
        "the learner keeps seats for late groups until a clock that was set back has caught up",
        LUA + "state.lua",
        "return (run.clock_ms or 0) + math.max(0, step)",
        "return (run.clock_ms or 0) + step",
        ("tests/queue/test_clock.py::test_the_learner_waits_no_longer_for_what_is_late_when_the_clock_is_set_back",),
    ),
    Mutation(
        "a lease that was handed back is renewed",
        "a task waits for a whole lease for a worker that has given it up",
        LUA + "worker.lua",
        " and not is_over(run, id) then",
        " then",
        ("tests/queue/test_bounded_steps.py::test_what_was_handed_back_is_due_at_once_and_cannot_be_renewed",),
    ),
    Mutation(
        "one step of a cancellation and no more",
        "workers go on with what can no longer be trained, after an update that left much behind",
        LUA + "lease_expiry.lua",
        "local cancelled = cancel_late(run, left)",
        "local cancelled = 0",
        ("tests/queue/test_bounded_steps.py::test_an_update_cancels_a_step_and_the_housekeeper_the_rest",),
    ),
    Mutation(
        "one step of what a rewind leaves behind and no more",
        "workers go on with what abandoned weights have begun, until their completion is refused",
        "echo_queue/queue/learner.py",
        "while self.cancel():",
        "if self.cancel():",
        ("tests/queue/test_bounded_steps.py::test_a_new_lineage_sends_back_all_that_abandoned_weights_make",),
    ),
    Mutation(
        "leases that no move has noted",
        "what a worker's user has leased by hand stays with it for ever",
        LUA + "lease_expiry.lua",
        "if leased(run) ~= redis.call('ZCARD', run.K.leases) then find_leases(run, ends) end",
        "",
        ("tests/queue/test_bounded_steps.py::test_whatever_a_worker_does_to_leases_by_hand_every_task_comes_back",),
    ),
    Mutation(
        "a seat for what is too late",
        "the learner waits, with groups at hand, for one that it may not train",
        LUA + "learner.lua",
        "run.wait_late and run.K.in_flight or run.K.awaited, oldest, oldest)",
        "run.wait_late and run.K.in_flight or run.K.awaited, '-inf', oldest)",
        ("tests/queue/test_bounded_steps.py::test_what_no_step_has_cancelled_yet_is_refused_and_keeps_no_seat",),
    ),
    Mutation(
        "a restart reads one step of what is in hand",
        "groups that an earlier learner drained are in nobody's hands until the next restart",
        "echo_queue/queue/learner.py",
        "while looked:",
        "for _ in range(1):",
        (
            "tests/queue/test_bounded_steps.py::"
            "test_a_learner_that_restarts_gets_all_that_it_had_in_hand_or_sends_it_back",
        ),
    ),
    Mutation(
        "admission without bound",
        "groups are generated that are too old when their turn comes",
        LUA + "backlog.lua",
        "full = min_pv > run.published or (run.pace",
        "full = (run.pace",
        ("tests/queue/test_admission.py::test_with_s_0_exactly_one_batch_is_admitted_for_each_update",),
    ),
    Mutation(
        "shortest first",
        "the longest groups are begun last, and every update waits for them",
        LUA + "backlog.lua",
        "if a.length ~= b.length then return a.length > b.length end",
        "if a.length ~= b.length then return a.length < b.length end",
        ("tests/queue/test_long_tail.py::test_the_longest_of_the_epoch_before_are_handed_out_first",),
    ),
    Mutation(
        "long ones handed out together",
        "the longest groups of an update slow one another down at one worker, and all others wait for it",
        LUA + "worker.lua",
        "full = #tasks == size or pairs_of(task[3]).long == '1'",
        "full = #tasks == size",
        ("tests/queue/test_long_tail.py::test_the_long_ones_go_to_whoever_asks_next_and_never_two_at_once",),
    ),
    Mutation(
        "a bucket that learns nothing",
        "in the first epoch prompts are begun in any order, and updates wait for the longest",
        LUA + "worker.lua",
        "if byte > 0 and byte <= BUCKETS then note_bucket(run, task.set, byte, tokens) end",
        "",
        ("tests/queue/test_long_tail.py::test_in_the_first_epoch_prompts_are_as_long_as_those_like_them",),
    ),
    Mutation(
        "a chunk submitted twice counts twice",
        "prompts of a chunk whose message came twice are trained twice",
        LUA + "backlog.lua",
        "if was.state == 'done' then return 0 end",
        "",
        ("tests/queue/test_admission.py::test_a_submission_repeated_adds_nothing",),
    ),
    Mutation(
        "a checkpoint committed twice counts twice",
        "after a commit that lost its reply, a rewind does not bring back what the checkpoint held",
        LUA + "learner.lua",
        "if run.state.committed == args[3] then return { 0, refs } end",
        "",
        ("tests/queue/test_completion.py::test_committing_twice_counts_once",),
    ),
    Mutation(
        "committed ids that are not open are forgotten",
        "a Redis that was set back to before their admission trains them again",
        LUA + "learner.lua",
        "    redis.call('SADD', run.K.settled_ids, id)\n",
        "",
        ("tests/queue/test_lineage.py::test_the_checkpoint_is_believed_even_where_redis_forgot_the_admission",),
    ),
    Mutation(
        "the pointer to the weights moves backward",
        "a publication that was slow makes the workers serve older weights",
        LUA + "learner.lua",
        "  if stands(run, lineage, number) then return 0 end\n",
        "",
        ("tests/queue/test_lineage.py::test_the_pointer_only_moves_forward",),
    ),
    Mutation(
        "a forgotten pointer stays forgotten",
        "after a fail-over that forgot a publication the workers wait for weights until the learner gives up",
        "learner/publication/weight_broadcast.py",
        "if last is not None and (now is None or now.version < last.version):",
        "if False:",
        ("tests/learner/test_training_loop.py::test_a_publication_that_redis_forgot_is_made_again",),
    ),
    Mutation(
        "resumed without what lies ahead",
        "what a learner saved and died before it committed is trained again",
        "learner/recovery/resume.py",
        "    for manifest in to_commit:\n        queue.commit(manifest.name, manifest.trained)\n",
        "",
        ("tests/learner/recovery/test_resume.py::test_a_redis_that_lost_everything_is_told_what_is_trained",),
    ),
    Mutation(
        "resumed without what was left behind",
        "what only a damaged checkpoint held, or a rewind undid, is trained in no weights that survive",
        "learner/recovery/resume.py",
        "undone = queue.uncommit(manifest.name, manifest.parent or NO_CHECKPOINT, manifest.trained)",
        "undone = 0",
        ("tests/learner/recovery/test_resume.py::test_what_only_a_damaged_checkpoint_holds_is_trained_again",),
    ),
    Mutation(
        "a checkpoint's manifest first",
        "a learner that dies while it saves leaves a checkpoint that cannot be loaded, and counts as one",
        "learner/recovery/checkpoint.py",
        """\
    try:
        report = RankReport(write_files(store, folder_of(name), pieces, file_bytes))
    except Exception as error:
        team.report(_parts_of(name), rank_report.failed(error).encode())
        raise
    team.report(_parts_of(name), report.encode())
""",
        """\
    import types
    pieces = tuple(pieces)
    nowhere = types.SimpleNamespace(put=lambda key, data: True)
    report = RankReport(write_files(nowhere, folder_of(name), pieces, file_bytes))
    team.report(_parts_of(name), report.encode())
    write_files(store, folder_of(name), pieces, file_bytes)
""",
        ("tests/learner/recovery/test_ranks.py::test_a_rank_whose_upload_fails_is_named_with_the_cause",),
    ),
    Mutation(
        "each rank chooses its checkpoint",
        "after a damaged file the ranks go on from different versions, and the model is pieces of both",
        "learner/recovery/checkpoint.py",
        "for rank, report in enumerate(reports) if report.damage is not None]",
        "for rank, report in enumerate(reports) if report.damage is not None and rank == team.rank]",
        (
            "tests/learner/recovery/test_ranks.py::"
            "test_damage_that_one_rank_meets_sends_all_ranks_to_the_checkpoint_before",
        ),
    ),
    Mutation(
        "a checkpoint's digest not checked",
        "training goes on from tensors that a disk has changed",
        "learner/recovery/state_reader.py",
        "if blake3(data).hexdigest() == file.digest:",
        "if True:",
        ("tests/learner/recovery/test_checkpoint.py::test_a_checkpoint_that_is_not_whole_is_passed_over",),
    ),
    Mutation(
        "any checkpoint's name may be written again",
        "two learners overwrite each other's checkpoint",
        "learner/recovery/checkpoint.py",
        "manifest.encode(), once=True)",
        "manifest.encode())",
        ("tests/learner/recovery/test_checkpoint.py::test_saving_again_is_harmless_and_another_learner_is_refused",),
    ),
    Mutation(
        "chunks of weights not checked",
        "workers generate with weights that the network or a disk has changed",
        "echo_queue/weights/reader.py",
        "return len(chunk) == part.length(index) and digest(chunk) == part.chunks[index]",
        "return True",
        ("tests/weights/test_reader.py::test_a_flipped_bit_is_never_loaded",),
    ),
    Mutation(
        "signatures not checked",
        "anyone who can write to the store decides what the workers generate with",
        "echo_queue/weights/signatures.py",
        "            self._key.verify(bytes.fromhex(end[2].decode()), DOMAIN + body)\n",
        "            pass\n",
        ("tests/weights/test_signatures.py::test_any_changed_byte_is_noticed",),
    ),
    Mutation(
        "a manifest of another version believed",
        "an old, signed manifest under a new name makes the workers serve old weights",
        "echo_queue/weights/reader.py",
        'if (run, found) != (store.prefix.removesuffix("/"), version):',
        "if False:",
        ("tests/weights/test_reader.py::test_another_runs_or_versions_manifest_is_refused",),
    ),
    Mutation(
        "parts announced before they are stored",
        "workers fetch parts that are not there yet, and prefetch nothing more of their version",
        "echo_queue/weights/part_makers.py",
        "        self._store.put(part.key, data)\n",
        "        threading.Thread(target=self._store.put, args=(part.key, data)).start()\n",
        ("tests/weights/test_announcements.py::test_parts_that_are_stored_in_any_order_are_announced_in_theirs",),
    ),
    Mutation(
        "announcements outlive their version",
        "a learner that hung and wakes up makes the workers fetch a version that will never be published",
        LUA + "learner.lua",
        "  redis.call('DEL', run.K.coming)\n",
        "",
        ("tests/queue/test_announcing.py::test_it_is_gone_when_the_pointer_moves_and_does_not_come_back",),
    ),
    Mutation(
        "announcements of other weights believed",
        "a worker's link carries a difference that it cannot apply, while what it needs waits",
        "workers/weights/prefetch.py",
        "if announcement.base is not None and have != (announcement.base, announcement.base_root):",
        "if False:",
        ("tests/workers/weights/test_prefetching.py::test_a_lie_is_ignored_with_one_warning",),
    ),
    Mutation(
        "what was announced in vain stays in the part cache",
        "a learner that is killed again and again fills the workers' disks",
        "workers/weights/cache/caching_transport.py",
        "        self._part_cache.discard(prefetched.keys - wanted)\n",
        "",
        ("tests/workers/weights/test_growing_routes.py::test_what_is_given_up_leaves_no_part_and_holds_nothing",),
    ),
    Mutation(
        "a probe proves nothing",
        "workers leave good peers for ones that are no faster, and read the store that they were to spare",
        "workers/weights/peers/source_choice.py",
        "if probe.rate >= 2 * probe.rate_before and view.peers:",
        "if view.peers:",
        ("tests/workers/weights/test_source_choice.py::test_a_probe_must_prove_twice_as_fast",),
    ),
    Mutation(
        "every worker of a shared folder reads the store",
        "a site pays for each part as often as it has workers",
        "workers/weights/folder.py",
        "                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        ("tests/workers/weights/test_folder.py::test_a_part_has_one_claim_at_a_time",),
    ),
    Mutation(
        "a difference applied to other weights than its own",
        "a worker whose weights are not those of its version's name goes on from them",
        "echo_queue/weights/reader.py",
        "        if route.base_root != here:\n",
        "        if False:\n",
        ("tests/weights/test_reader.py::test_other_weights_under_a_versions_name_are_no_base",),
    ),
    Mutation(
        "tensors not compared with the manifest",
        "parts that are whole and make other weights are served",
        "echo_queue/weights/reader.py",
        "if not matches(tensors[info.name], info):",
        "if False:",
        ("tests/weights/test_reader.py::test_parts_that_are_whole_and_make_other_tensors_are_never_loaded",),
    ),
    Mutation(
        "bases of kept versions pruned",
        "a worker that comes late finds differences to a version that is gone",
        "echo_queue/weights/retention.py",
        "        floors[version.lineage] = whole[-2] if len(whole) > 1 else older[0]\n",
        "        floors[version.lineage] = version\n",
        ("tests/weights/test_retention.py::test_pruning_leaves_the_newest_what_lies_within_s_and_two_ways_there",),
    ),
    Mutation(
        "weights within S pruned",
        "a worker that may still serve a version finds it gone",
        "echo_queue/weights/retention.py",
        "one.number >= newest.number - s}",
        "one.number >= newest.number}",
        ("tests/weights/test_retention.py::test_only_what_nobody_can_need_is_expendable",),
    ),
    Mutation(
        "a spilled payload removed when drained",
        "a learner that restarts with groups in hand finds them gone",
        "echo_queue/queue/learner.py",
        "        return replies.drained_of(reply",
        "        store: Any = self._payloads._store\n"
        '        store.delete([one.key for one in store.list("replay/")])\n'
        "        return replies.drained_of(reply",
        ("tests/queue/test_payloads.py::test_a_drained_group_stays_in_the_store_until_it_is_committed",),
    ),
    Mutation(
        "no reconciler in the Celery workers",
        "chunks whose message a killed worker had taken never arrive",
        "echo_queue/submission/celery/app.py",
        "(LeaveUnacked, ReconcilerStep)",
        "(LeaveUnacked,)",
        ("tests/submission/test_submission.py::test_what_is_lost_in_the_broker_is_sent_again",),
    ),
    Mutation(
        "workers ignore min_pv",
        "they generate with weights that are too old, again and again",
        "workers/leaser.py",
        "return Version(newest.lineage, number) if serving.number < number else None",
        "return None",
        ("tests/workers/test_rollout_loop.py::test_weights_are_refreshed_only_for_a_task_that_needs_it",),
    ),
    Mutation(
        "an engine is not probed",
        "a worker generates with weights that were never published, under the name of a version",
        "workers/weights/swap.py",
        "if not held:",
        "if False:",
        ("tests/workers/weights/test_swap.py::test_an_engine_that_holds_other_bytes_than_were_published_is_noticed",),
    ),
    Mutation(
        "a damaged stage stays a base",
        "the next difference is applied to what was never a version, again and again",
        "workers/weights/staging.py",
        "        have, self.have = self.have, None\n",
        "        have = self.have\n",
        (
            "tests/workers/weights/test_staging.py::test_a_copy_that_was_damaged_is_noticed_and_comes_anew_from_an_anchor",
        ),
    ),
    Mutation(
        "a pinned key is replaced by Redis",
        "anyone who can write to Redis gives the workers weights",
        "workers/weights/key_pinning.py",
        "    if keys.public_key != expected:\n",
        "    if False:\n",
        (
            "tests/workers/weights/test_weight_watcher.py::test_a_pinned_key_in_the_configuration_is_not_replaced_by_redis",
        ),
    ),
    Mutation(
        "leases are kept in quarantine",
        "tasks wait for a worker that may never generate again",
        "workers/weights/updater.py",
        "            self._on_quarantine()\n",
        "",
        ("tests/workers/test_quarantine.py::test_what_runs_is_handed_back_before_weights_are_built_anew",),
    ),
    Mutation(
        "the lease keeper does not renew",
        "every call longer than a lease is taken over while it still runs",
        "workers/lease_keeper.py",
        "            lost = self._queue.renew(self._worker, self._held.versions())\n",
        "            lost: list[str] = []\n",
        ("tests/workers/test_lease_keeper.py::test_a_lease_lasts_as_long_as_the_heart_beats",),
    ),
    Mutation(
        "groups are not validated",
        "one broken worker spoils the gradient of all",
        "echo_queue/queue/payloads.py",
        "            self._validator.check(group)\n",
        "            pass\n",
        ("tests/queue/test_bad_groups.py::test_a_bad_group_is_buried_with_its_reason_and_sender_and_the_next_goes_on",),
    ),
    Mutation(
        "an answer cut short is taken for whole",
        "a checkpoint or a chunk of weights is read in part",
        "echo_queue/storage/object_store.py",
        'if len(data) != int(answer["ContentLength"]):',
        "if False:",
        ("tests/faults/proxy/test_proxy.py::test_an_answer_that_ends_anywhere_is_asked_for_again",),
    ),
    Mutation(
        "two supervisors of one run",
        "every role runs twice in one directory",
        "echo_queue/launch/supervisor.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        ("tests/launch/test_supervisor.py::test_a_second_supervisor_is_refused",),
    ),
    Mutation(
        "manifests removed before their archive is stored",
        "a learner that dies in between has lost what proves that nothing was trained twice, and cannot resume",
        "learner/recovery/archive.py",
        """\
            store.put(f"{folder_of(manifests[-1].name)}{blake3(data).hexdigest()}{SUFFIX}", data)
            store.delete([folder_of(manifest.name) + MANIFEST for manifest in manifests])
""",
        """\
            store.delete([folder_of(manifest.name) + MANIFEST for manifest in manifests])
            store.put(f"{folder_of(manifests[-1].name)}{blake3(data).hexdigest()}{SUFFIX}", data)
""",
        ("tests/learner/recovery/test_checkpoint.py::test_a_crash_while_manifests_are_archived_loses_none",),
    ),
    Mutation(
        "an archive believed without its digest",
        "a damaged archive counts prompts as trained that no update saw",
        "learner/recovery/archive.py",
        "if blake3(data).hexdigest() != key.rpartition",
        "if not data and blake3(data).hexdigest() != key.rpartition",
        ("tests/learner/recovery/test_checkpoint.py::test_a_damaged_archive_is_named_and_never_believed",),
    ),
    Mutation(
        "a Redis without an append-only file taken",
        "a restart of that server forgets what was submitted",
        "echo_queue/connections/redis_check.py",
        "if facts.append_only is False and not settings.durable:",
        "if facts.append_only is False and settings.wait_replicas:",
        ("tests/connections/test_redis_check.py::test_a_server_that_loses_data_is_refused_with_the_line_to_change",),
    ),
    Mutation(
        "dead tasks keep tracebacks for ever",
        "a broken environment fills memory with the same traceback a million times, and all work stops",
        LUA + "state.lua",
        "if redis.call('XLEN', run.K.dead) >= DEAD_WHOLE then",
        "if redis.call('XLEN', run.K.dead) < 0 then",
        (
            "tests/queue/test_bounds.py::"
            "test_the_reasons_of_the_first_thousand_dead_tasks_are_whole_and_the_others_short",
        ),
    ),
    Mutation(
        "tasks that nobody is told of",
        "idle workers stand still until they look by themselves, while prompts wait",
        LUA + "state.lua",
        "if stream ~= 'dead' then offer(run, 1) end",
        "",
        ("tests/queue/test_waits.py::test_a_task_that_comes_back_is_offered",),
    ),
    Mutation(
        "offers that outlive their tasks",
        "an idle worker asks for tasks without a pause until it has used up all that was ever offered",
        LUA + "worker.lua",
        "if not full then redis.call('DEL', run.K.offers) end",
        "",
        ("tests/queue/test_waits.py::test_a_lease_that_finds_nothing_withdraws_what_was_offered",),
    ),
    Mutation(
        "a learner that is not told of its groups",
        "the batch is ready and the learner waits for its own next look",
        LUA + "worker.lua",
        "if ready >= run.enough and ready - added < run.enough then",
        "if false then",
        ("tests/queue/test_waits.py::test_a_completion_of_many_groups_tells_once_that_they_are_enough",),
    ),
    Mutation(
        "each completion told",
        "the learner drains once for each group of its batch",
        LUA + "worker.lua",
        "if ready >= run.enough and ready - added < run.enough then",
        "if true then",
        ("tests/queue/test_waits.py::test_a_learner_is_told_when_half_of_what_it_lacks_is_ready",),
    ),
    Mutation(
        "a worker fed by one that it feeds",
        "workers wait for one another's bytes in a circle, and read the store only once they lose patience",
        LUA + "peers.lua",
        "if its_place > place or above >= place then return end",
        "if its_place > place then return end",
        ("tests/queue/test_peers.py::test_workers_that_join_in_any_order_and_manner_never_wait_in_a_circle",),
    ),
)
