<?php // Records whose content their number and version give: php records.php RECORDS ROUNDS
ini_set('memory_limit', '-1');
[, $records, $rounds] = array_map('intval', $argv);
function random(int $x): int { return $x * 48271 % 2147483647; }
function content(int $i, int $version): string {
    $x = random($i * 31 + $version * 7919 + 1);
    $words = '';
    for ($n = 0; $n < 6; $n++) { $x = random($x); $words .= dechex($x) . ' '; }
    return "record $i version $version " . str_repeat($words, 8);
}
$versions = array_fill(0, $records, 0);
$strings = $arrays = [];
$make = function (int $i) use (&$versions, &$strings, &$arrays): void {
    $strings[$i] = content($i, $versions[$i]);
    $entry = new stdClass();
    $entry->self = $entry; // a cycle, for the collector
    $entry->version = $versions[$i];
    $entry->parts = explode(' ', $strings[$i]);
    $arrays["key $i"] = $entry;
};
for ($i = 0; $i < $records; $i++) { $make($i); }
$sum = 0;
for ($round = 0; $round < $rounds; $round++) {
    usleep(500000);
    for ($i = 0; $i < $records; $i++) {
        $want = content($i, $versions[$i]);
        $entry = $arrays["key $i"];
        if ($strings[$i] !== $want || $entry->version !== $versions[$i]
            || implode(' ', $entry->parts) !== $want) {
            echo "BAD record $i in round $round\n";
            exit(1);
        }
        $sum = ($sum * 31 + strlen($want) + ord($want[30])) % 2147483647;
        if ($i % 3 === $round % 3) { $versions[$i]++; $make($i); }
    }
    gc_collect_cycles();
}
echo "OK $sum\n";
