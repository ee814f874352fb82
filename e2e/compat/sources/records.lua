-- Records whose content their number and version give: lua records.lua RECORDS ROUNDS
local records, rounds = math.tointeger(arg[1]), math.tointeger(arg[2])
local function random(x) return x * 48271 % 2147483647 end
local function content(i, version)
  local x, words = random(i * 31 + version * 7919 + 1), ''
  for _ = 1, 6 do x = random(x); words = words .. string.format('%x ', x) end
  return string.format('record %d version %d ', i, version) .. string.rep(words, 8)
end
local versions, strings, tables = {}, {}, {}
local function make(i)
  strings[i] = content(i, versions[i])
  local parts = {}
  for word in strings[i]:gmatch('%S+') do parts[#parts + 1] = word end
  tables['key ' .. i] = { version = versions[i], parts = parts }
end
for i = 0, records - 1 do versions[i] = 0; make(i) end
local sum = 0
for round = 0, rounds - 1 do
  os.execute('sleep 0.5')
  for i = 0, records - 1 do
    local want, entry = content(i, versions[i]), tables['key ' .. i]
    if strings[i] ~= want or entry.version ~= versions[i]
        or table.concat(entry.parts, ' ') .. ' ' ~= want then
      print('BAD record ' .. i .. ' in round ' .. round)
      os.exit(1)
    end
    sum = (sum * 31 + #want + want:byte(31)) % 2147483647
    if i % 3 == round % 3 then versions[i] = versions[i] + 1; make(i) end
  end
  collectgarbage(round % 2 == 0 and 'generational' or 'incremental')
  collectgarbage()
end
print('OK ' .. sum)
