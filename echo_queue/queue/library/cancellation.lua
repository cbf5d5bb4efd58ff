-- Sending back what is in flight by versions that can no longer be trained, for the moves of the learner and the sweep.

-- Sends back at most so many tasks in flight whose generating version lies in the given range. Returns how many.
local function send_back_range(run, low, high, most, late)
  local ids = redis.call('ZRANGEBYSCORE', run.K.in_flight, low, high, 'LIMIT', 0, most)
  for _, id in ipairs(ids) do
    local stream, entry = place_of(run, id)
    if is_task(stream) then
      send_back(run, id, stream, entry, { too_late = late })
    else
      forget_lease(run, id)
    end
  end
  count(run, 'cancelled', #ids)
  return #ids
end

-- One step: what is in flight and can no longer be trained goes back. Until then its completion is refused.
local function cancel_late(run, most)
  return send_back_range(run, '-inf', '(' .. (run.v - run.s), most, true)
end
