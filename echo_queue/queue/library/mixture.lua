-- Which component of the mixture the next prompt comes from: smooth weighted round-robin, so that any few batches have each
-- component's share. The same rules are in Python in `tests/faults/reference_machine/reference.py`.
--
-- A component's credit is the number of prompts that it is owed: with each admission those that take part are credited 1
-- together, in proportion to their weights, and the one that is served pays 1. It takes part while it has a prompt to serve, or
-- waits for one that was declared: what is on its way is waited for, so that no component is trained ahead of the others. One
-- that has nothing more leaves its share to the others, and keeps its credit.

-- DEBT_MIN: credit and debt end at a batch, or at so many prompts: after many of one component were trained anew, the others
-- are not served alone for long.
local mixture = { DEBT_MIN = 8 }

-- Returns the name of the component that a set belongs to: what stands before the first dot.
function mixture.name_of(set)
  return set:match('^[^.]*')
end

-- Returns the components of a rule `mixture`, in its order: name and weight of each, as a word.
function mixture.parse(words)
  local components = {}
  for name, weight in (words or ''):gmatch('(%S+):(%S+)') do
    components[#components + 1] = { name = name, word = weight, weight = tonumber(weight) }
  end
  return components
end

-- Returns the component of these to which a set belongs; nil if there is none.
function mixture.find(components, set)
  local name = mixture.name_of(set)
  for _, component in ipairs(components) do
    if component.name == name then return component end
  end
end

-- Returns the credit and the number of admitted prompts that `mixture` holds of a component.
function mixture.read(text)
  local credit, admitted = (text or ''):match('^(%S+) (%d+)$')
  return tonumber(credit) or 0, tonumber(admitted) or 0
end

-- Returns whether the run has a mixture.
function mixture.is_set(run)
  return run.mixture and run.mixture ~= ''
end

-- Returns the run's components with their credits, and with the names of their sets in the backlog, in order of service.
function mixture.open(run)
  local components, held = mixture.parse(run.mixture), hash(run.K.mixture)
  for _, component in ipairs(components) do
    component.credit, component.admitted = mixture.read(held[component.name])
    component.sets, component.place = {}, 1
  end
  for _, name in ipairs(redis.call('ZRANGE', run.K.backlog, 0, -1)) do
    local component = mixture.find(components, name)
    if component then table.insert(component.sets, name) end
  end
  return components
end

-- Returns the sum of the weights of those that take part, of which `also` is one in any case.
function mixture.weights_of(components, takes_part, also)
  local sum = 0
  for _, component in ipairs(components) do
    if component == also or takes_part(component) then sum = sum + component.weight end
  end
  return sum
end

-- Returns the component that is owed most after the next admission, the first of several; nil if none takes part.
function mixture.choose(components, takes_part)
  local sum, chosen, most = mixture.weights_of(components, takes_part), nil, nil
  for _, component in ipairs(components) do
    local owed = component.credit + component.weight / sum
    if takes_part(component) and (not most or owed > most) then chosen, most = component, owed end
  end
  return chosen
end

-- Charges the component of a set for a prompt of it that was admitted, as it is also for one that is trained anew.
function mixture.charge(run, components, takes_part, set)
  local served = mixture.find(components, set)
  if not served then return end
  local sum, most = mixture.weights_of(components, takes_part, served), math.max(run.batch, mixture.DEBT_MIN)
  for _, component in ipairs(components) do
    if component == served or takes_part(component) then
      local credit = component.credit + component.weight / sum - (component == served and 1 or 0)
      component.credit = math.max(-most, math.min(most, credit))
    end
  end
  served.admitted = served.admitted + 1
end

-- Stores the credits after a call that has admitted prompts.
function mixture.save(run, components)
  local words = {}
  for _, component in ipairs(components) do
    words[#words + 1] = component.name
    words[#words + 1] = string.format('%.17g %d', component.credit, component.admitted)
  end
  redis.call('HSET', run.K.mixture, unpack(words))
end
