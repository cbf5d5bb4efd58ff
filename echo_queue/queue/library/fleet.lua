-- The moves of the controller of a fleet: one of several leads, keeps its plan here, and orders workers to rest or to leave.
-- Only the leader's plan and orders are taken: by its name and by the number of its term, since a server that was set back
-- may give a number twice.

local ORDER_KEPT_MS = 86400000
local PLAN_MAX_BYTES = 1048576
local NAME_MAX_BYTES = 200
local WORDS = { rest = true, leave = true }

local function check_leader(run, name, term)
  local held = redis.call('HMGET', run.K.fleet, 'leader', 'term')
  if held[1] ~= name or held[2] ~= term then
    fail_with('EQDEPOSED', name .. ' does not lead in term ' .. term .. '; ' .. (held[1] or 'nobody') .. ' does')
  end
end

-- args: controller lease_ms. Makes the controller the leader, or keeps it so, for that long, unless another one leads. Returns
-- {term (0: another one leads), leader, plan, 1 if paused, the server's clock (ms)}.
local function lead(keys, args)
  local run, name = open_run(keys), args[1]
  if #name > NAME_MAX_BYTES then fail_with('EQREFUSED', 'the name of a controller is too long') end
  local held = hash(run.K.fleet)
  local paused = held.paused and 1 or 0
  local term = tonumber(held.term or 0)
  if held.leader ~= name then
    if tonumber(held.until_ms or 0) > run.now then return { 0, held.leader, '', paused, run.now } end
    term = term + 1
  end
  redis.call('HSET', run.K.fleet, 'leader', name, 'term', term, 'until_ms', run.now + tonumber(args[2]))
  return { term, name, held.plan or '', paused, run.now }
end

-- args: controller term plan, then pool machines… : what the leader is about to do, and the machines that it wants.
local function plan(keys, args)
  local run = open_run(keys)
  check_leader(run, args[1], args[2])
  if #args[3] > PLAN_MAX_BYTES then fail_with('EQREFUSED', 'a plan of ' .. #args[3] .. ' bytes') end
  redis.call('HSET', run.K.fleet, 'plan', args[3])
  redis.call('DEL', run.K.fleet_wanted)
  if #args > 3 then redis.call('HSET', run.K.fleet_wanted, unpack(args, 4)) end
end

-- args: controller term order within_ms worker… : each worker hears the order with its next heartbeat, and again with each
-- further one. `rest`: lease nothing more, finish, leave. `leave`: hand all tasks back and leave, within that time.
local function order(keys, args)
  local run = open_run(keys)
  check_leader(run, args[1], args[2])
  if not WORDS[args[3]] or not args[4]:match('^%d+$') then fail_with('EQREFUSED', 'that is no order') end
  for place = 5, #args do
    redis.call('SET', run.K['order:' .. args[place]], args[3] .. ' ' .. args[4], 'PX', ORDER_KEPT_MS)
  end
end

-- args: controller term. Lets another controller lead at once.
local function resign(keys, args)
  local run = open_run(keys)
  check_leader(run, args[1], args[2])
  redis.call('HSET', run.K.fleet, 'until_ms', 0)
end

-- args: 1 or 0. While the fleet is paused, its leader orders nothing.
local function pause(keys, args)
  local run = open_run(keys)
  if args[1] == '1' then
    redis.call('HSET', run.K.fleet, 'paused', run.now)
  else
    redis.call('HDEL', run.K.fleet, 'paused')
  end
end

register('lead', lead)
register('plan', plan)
register('order', order, 'allow-oom')
register('resign', resign, 'allow-oom')
register('pause', pause, 'allow-oom')
