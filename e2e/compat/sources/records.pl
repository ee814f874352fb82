# Records whose content their number and version give: perl records.pl RECORDS ROUNDS
use strict; use warnings;
my ($records, $rounds) = @ARGV;
sub random { return $_[0] * 48271 % 2147483647 }
sub content {
    my ($i, $version) = @_;
    my ($x, $words) = (random($i * 31 + $version * 7919 + 1), '');
    for (1 .. 6) { $x = random($x); $words .= sprintf '%x ', $x }
    return "record $i version $version " . $words x 8;
}
my (@versions, @strings, %hashes);
sub make {
    my ($i) = @_;
    $strings[$i] = content($i, $versions[$i]);
    $hashes{"key $i"} = { version => $versions[$i], parts => [split / /, $strings[$i]] };
}
for my $i (0 .. $records - 1) { $versions[$i] = 0; make($i) }
my $sum = 0;
for my $round (0 .. $rounds - 1) {
    select undef, undef, undef, 0.5;
    for my $i (0 .. $records - 1) {
        my ($want, $hash) = (content($i, $versions[$i]), $hashes{"key $i"});
        if ($strings[$i] ne $want || $hash->{version} != $versions[$i]
            || join(' ', @{$hash->{parts}}) . ' ' ne $want) {
            print "BAD record $i in round $round\n"; exit 1;
        }
        $sum = ($sum * 31 + length($want) + ord(substr $want, 30)) % 2147483647;
        if ($i % 3 == $round % 3) { $versions[$i]++; make($i) }
    }
}
print "OK $sum\n";
