-- The queries `audit` and `status`. They change nothing, and every role may make them.

local function audit(keys)
  local run = open_run(keys)
  local K, stats = run.K, hash(run.K.stats)
  local found = {
    submitted = tonumber(stats.submitted or 0), backlog = (backlog_left(run)),
    tasks = redis.call('XLEN', K.tasks) + redis.call('XLEN', K.retry), replay = redis.call('XLEN', K.replay),
    trained = tonumber(stats.trained or 0), dead = redis.call('XLEN', K.dead),
    ready = redis.call('ZCARD', K.ready), in_hand = redis.call('ZCARD', K.in_hand),
    open = redis.call('HLEN', K.open), in_flight = redis.call('ZCARD', K.in_flight), leases = redis.call('ZCARD', K.leases),
    leased = leased(run), evaluation = redis.call('XLEN', K.evaluation), scored = redis.call('XLEN', K.scored),
    evaluating = leased_of(run, 'evaluation'), asked = tonumber(stats.asked or 0), concluded = tonumber(stats.concluded or 0),
    lost = tonumber(stats.lost or 0), forged = tonumber(stats.forged or 0),
  }
  found.difference = found.submitted - found.backlog - found.tasks - found.replay - found.trained - found.dead
  found.unasked = found.asked - found.evaluation - found.scored - found.concluded
  found.misplaced = found.open - found.tasks - found.replay - found.dead - found.evaluation - found.scored
  local kept = found.difference == 0 and found.misplaced == 0 and found.ready + found.in_hand == found.replay
    and found.unasked == 0 and found.in_flight + found.evaluating == found.leased and found.leases == found.leased and found.lost == 0
    and found.forged == 0
  local answer = {}
  for _, name in ipairs({ 'submitted', 'backlog', 'tasks', 'replay', 'trained', 'dead', 'difference', 'open', 'misplaced',
                          'ready', 'in_hand', 'in_flight', 'evaluating', 'leases', 'leased', 'asked', 'evaluation', 'scored',
                          'concluded', 'lost', 'forged' }) do
    answer[#answer + 1], answer[#answer + 2] = name, found[name]
  end
  answer[#answer + 1], answer[#answer + 2] = 'verdict', kept and 'OK' or 'BROKEN'
  return answer
end

local function counters(run)
  local answer = redis.call('HGETALL', run.K.stats)
  local tallies = hash(run.K.tallies)
  for _, name in ipairs(TALLIES) do
    if tallies[name] then answer[#answer + 1], answer[#answer + 2] = name, tallies[name] end
  end
  return answer
end

-- Returns the fields of `round` and its numbers; {} between rounds.
local function round_under_way(run)
  local round = redis.call('HGETALL', run.K.round)
  if not round[1] then return round end
  local running = leased_of(run, 'evaluation')
  for name, number in pairs({ waiting = redis.call('XLEN', run.K.evaluation) - running, running = running,
                              scored = redis.call('XLEN', run.K.scored), keepers = redis.call('ZCARD', run.K.keepers) }) do
    round[#round + 1], round[#round + 2] = name, number
  end
  return round
end

-- Returns name, weight, admitted, backlog and missing of each component of the mixture; {} without one.
local function component_rows(run)
  if not mixture.is_set(run) then return {} end
  local rows = mixture.open(run)
  for place, component in ipairs(rows) do
    local left, missing = 0, 0
    for _, name in ipairs(component.sets) do
      local of_set, of_set_missing = left_of(run, name)
      left, missing = left + of_set, missing + of_set_missing
    end
    rows[place] = { component.name, component.word, component.admitted, left, missing }
  end
  return rows
end

-- What a run holds, in numbers. Its workers are read by plain commands, a page at a time, so that many of them hold up nobody.
local function status(keys)
  local run = open_run(keys)
  local K = run.K
  local ready, replay = redis.call('ZCARD', K.ready), redis.call('XLEN', K.replay)
  return {
    redis.call('HGETALL', K.state), redis.call('HGETALL', K.rules), redis.call('HGETALL', K.published),
    counters(run),
    { 'backlog', (backlog_left(run)), 'tasks', redis.call('XLEN', K.tasks), 'retry', redis.call('XLEN', K.retry),
      'in_flight', redis.call('ZCARD', K.in_flight), 'ready', ready, 'drained', replay - ready, 'replay', replay,
      'dead', redis.call('XLEN', K.dead),
      'finished', is_finished(run) and 1 or 0,
      'learner_silent_ms', run.state.swept_ms and run.now - run.state.swept_ms or -1 },
    round_under_way(run),
    component_rows(run),
    run.now,
  }
end

register('audit', audit, 'no-writes')
register('status', status, 'no-writes')
