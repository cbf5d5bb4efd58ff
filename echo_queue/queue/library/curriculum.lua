-- The curriculum: which of the prompts that a set's cursor has passed is admitted next, by what its earlier groups earned.
-- The same rules are in Python in `curriculum.py`.

-- ADMIT_MAX: prompts that one call admits, because to choose one costs as much as to admit ten.
local curriculum = { LOOKED_AT = 8, TAKEN = 2, ADMIT_MAX = 64, KEPT_SHARE = 0.5, SAMPLES_MAX = 64, EXPLORATION = 0.25 }

-- Returns numbers in (0, 1), the same ones for the same text (Park and Miller 1988).
function curriculum.uniform(text)
  local state = tonumber(redis.sha1hex(text):sub(1, 8), 16) % 2147483646 + 1
  return function()
    state = state * 16807 % 2147483647
    return state / 2147483647
  end
end

-- Draws from the gamma distribution of that shape, which is at least 1 (Marsaglia and Tsang 2000).
function curriculum.gamma(shape, uniform)
  local d = shape - 1 / 3
  local c = 1 / math.sqrt(9 * d)
  while true do
    local x = math.sqrt(-2 * math.log(uniform())) * math.cos(2 * math.pi * uniform())
    local t = 1 + c * x
    local v = t * t * t
    if math.log(uniform()) < (v > 0 and x * x / 2 + d - d * v + d * math.log(v) or -math.huge) then return d * v end
  end
end

-- Successes and failures fade: a byte b stands for (b / 16)² of them.
function curriculum.value(byte)
  return (byte or 0) * (byte or 0) / 256
end

function curriculum.byte(value)
  return math.min(255, math.floor(16 * math.sqrt(value) + 0.5))
end

-- Returns the faded numbers of successes and failures among a prompt's samples.
function curriculum.seen(run, name, index)
  if 2 * index + 1 >= STRING_MAX_BYTES then return 0, 0 end
  local successes, failures = redis.call('GETRANGE', run.K['successes:' .. name], 2 * index, 2 * index + 1):byte(1, 2)
  return curriculum.value(successes), curriculum.value(failures)
end

-- Notes what a prompt's group earned: a hint, which may be lost.
function curriculum.note(run, task, samples, reward)
  local index = tonumber(task.index)
  if run.curriculum == 'off' or 2 * index + 1 >= STRING_MAX_BYTES then return end
  local successes, failures = curriculum.seen(run, task.set, index)
  local share = math.min(1, math.max(0, (reward - run.reward_failure) / (run.reward_success - run.reward_failure)))
  local count = math.min(samples, curriculum.SAMPLES_MAX)
  successes = curriculum.byte(curriculum.KEPT_SHARE * successes + count * share)
  failures = curriculum.byte(curriculum.KEPT_SHARE * failures + count * (1 - share))
  redis.call('SETRANGE', run.K['successes:' .. task.set], 2 * index, string.char(successes, failures))
end

-- Returns how much is expected of the prompt. mopps: how near to 1/2 the success rate is that is drawn from its posterior
-- Beta(1 + successes, 1 + failures). dopr: the deviation of its rewards, and a bonus for what was tried little by the time
-- that `passed` prompts were.
function curriculum.score(run, successes, failures, passed, uniform)
  local alpha, beta = 1 + successes, 1 + failures
  if run.curriculum == 'mopps' then
    local a, b = curriculum.gamma(alpha, uniform), curriculum.gamma(beta, uniform)
    return -math.abs(a / (a + b) - 0.5)
  end
  local share, tried = alpha / (alpha + beta), successes + failures
  return math.sqrt(share * (1 - share)) + curriculum.EXPLORATION * math.sqrt(math.log(1 + passed) / (1 + tried))
end

-- Returns the best of some candidates of the set, drawn by its seed; without a curriculum, which was turned off since, the
-- first one.
function curriculum.choose(run, set, count, passed)
  local key = run.K['candidates:' .. set.name]
  if run.curriculum == 'off' then return redis.call('ZRANGE', key, 0, 0)[1] end
  local uniform = curriculum.uniform(string.format('%s:%s:%d:%d', set.seed, set.name, passed, count))
  local best, most
  for _ = 1, math.min(count, curriculum.LOOKED_AT) do
    local place = math.floor(uniform() * count)
    local member = redis.call('ZRANGE', key, place, place)[1]
    local successes, failures = curriculum.seen(run, set.name, tonumber(member:match('^%d+/(%d+)/')))
    local score = curriculum.score(run, successes, failures, passed, uniform)
    if not most or score > most then best, most = member, score end
  end
  return best
end
