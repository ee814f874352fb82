# Records whose content their number and version give: ruby records.rb RECORDS ROUNDS
records, rounds = ARGV.map(&:to_i)
def random(x) = x * 48271 % 2147483647
def content(i, version)
  x = random(i * 31 + version * 7919 + 1)
  words = +''
  6.times { words << (x = random(x)).to_s(16) << ' ' }
  "record #{i} version #{version} " + words * 8
end
versions = Array.new(records, 0)
strings = []
hashes = {}
make = lambda do |i|
  strings[i] = content(i, versions[i])
  hashes["key #{i}"] = { version: versions[i], parts: strings[i].split }
end
records.times(&make)
sum = 0
rounds.times do |round|
  sleep 0.5
  records.times do |i|
    want, hash = content(i, versions[i]), hashes["key #{i}"]
    unless strings[i] == want && hash[:version] == versions[i] && hash[:parts] == want.split
      puts "BAD record #{i} in round #{round}"
      exit 1
    end
    sum = (sum * 31 + want.size + want[30].ord) % 2147483647
    if i % 3 == round % 3
      versions[i] += 1
      make.(i)
    end
  end
  round.odd? ? GC.compact : GC.start
end
puts "OK #{sum}"
