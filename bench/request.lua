-- One request, repeated: its body from the file named first, its headers as the further arguments "Name: value".
-- Arguments that begin with "/" are paths which are asked in turn. A body with an id of 20 zeros gets another id in
-- each request: the seconds at which the run began, and a counter. At the end one line of JSON, because wrk's own
-- summary rounds and drops the kinds of error.
NO_ID = '"id": "' .. ("0"):rep(20) .. '"'

init = function(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*all")
  file:close()
  local paths = {}
  for i = 2, #args do
    local name, value = args[i]:match("^(.-): (.*)$")
    if args[i]:sub(1, 1) == "/" then paths[#paths + 1] = args[i] else wrk.headers[name] = value end
  end
  if #paths > 0 then take_turns(paths) elseif wrk.body:find(NO_ID, 1, true) then count() end
end

take_turns = function(paths)
  local made, turn = {}, 0
  for i, path in ipairs(paths) do made[i] = wrk.format(nil, path) end
  request = function()
    turn = turn % #made + 1
    return made[turn]
  end
end

count = function()
  local whole, began, sent = wrk.format(), os.time(), 0
  local from, to = whole:find(NO_ID, 1, true)
  local before, after = whole:sub(1, to - 21), whole:sub(to)
  request = function()
    sent = sent + 1
    return before .. string.format("%010d%010d", began, sent) .. after
  end
end

done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
