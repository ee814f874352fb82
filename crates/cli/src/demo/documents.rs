//! Synthetic JSON documents and, where a machine has too few files, English-like text. Both are
//! pure functions of a seed.

use super::random::Random;
use std::io::Write;

#[rustfmt::skip]
const FIRST: &[&str] = &[
    "Ada", "Alan", "Amina", "Anton", "Barbara", "Bela", "Chen", "Claude", "Dana", "Dmitri",
    "Edsger", "Elena", "Farid", "Frances", "Grace", "Hana", "Hedy", "Ines", "Ivan", "Jean",
    "Katherine", "Kenji", "Leslie", "Lin", "Margaret", "Mehmet", "Nadia", "Niklaus", "Olga",
    "Oscar", "Priya", "Radia", "Rosa", "Sofia", "Sven", "Tariq", "Uma", "Viktor", "Wanda",
    "Yuki",
];
#[rustfmt::skip]
const LAST: &[&str] = &[
    "Abbas", "Andersson", "Baker", "Becker", "Chandra", "Costa", "Dijkstra", "Dubois",
    "Eriksen", "Fischer", "Garcia", "Gruber", "Hamilton", "Hopper", "Ito", "Jansen", "Johnson",
    "Kowalski", "Kumar", "Lamport", "Lovelace", "Moreau", "Nakamura", "Novak", "Okafor",
    "Petrov", "Quispe", "Ritchie", "Rossi", "Santos", "Schmidt", "Silva", "Tanaka", "Turing",
    "Ueda", "Vargas", "Weber", "Wirth", "Yilmaz", "Zhang",
];
#[rustfmt::skip]
const CITY: &[&str] = &[
    "Accra", "Ankara", "Austin", "Bergen", "Bogota", "Brno", "Busan", "Cairo", "Dresden",
    "Dublin", "Fukuoka", "Geneva", "Hanoi", "Izmir", "Jaipur", "Krakow", "Lagos", "Leipzig",
    "Lima", "Lyon", "Malmo", "Nairobi", "Osaka", "Porto", "Quito", "Riga", "Seville", "Tallinn",
    "Turin", "Valencia", "Wellington", "Zagreb",
];
#[rustfmt::skip]
const WORD: &[&str] = &[
    "the", "of", "and", "to", "a", "in", "is", "that", "for", "it", "as", "with", "be", "on",
    "by", "this", "are", "or", "from", "memory", "page", "which", "not", "at", "value",
    "system", "when", "can", "an", "was", "data", "have", "each", "time", "one", "all", "cache",
    "than", "more", "used", "other", "file", "region", "first", "will", "their", "number",
    "process", "server", "after", "cold", "only", "tier", "between", "access", "two", "because",
    "may", "large", "request", "these", "without", "small", "order", "result", "price",
    "latency", "machine", "write", "most", "hot", "before", "kernel", "new", "address", "about",
    "table", "store", "through", "change", "under", "every", "case", "then", "record", "user",
    "report", "program", "where", "window", "read", "figure", "long", "example", "they",
    "policy", "cost", "service", "same", "moved", "later", "client", "again", "within",
    "message", "while", "fault", "network", "given", "since", "measure", "second", "garden",
    "winter", "river", "letter", "morning", "question", "answer", "history", "engine", "market",
    "station", "journey", "copper", "harbour", "lantern", "mountain", "orchard", "pencil",
    "quarry", "ribbon", "saddle", "timber", "umbrella", "velvet", "whistle", "yesterday",
    "zenith", "balance", "cabinet", "delivery", "evening", "fabric", "granite", "horizon",
    "island", "jacket", "kitchen", "library", "mirror", "notebook", "opinion", "parcel",
    "quality", "recipe", "season", "theatre", "uniform", "village", "weather", "compass",
    "bridge", "captain", "diamond",
];
const AGENT: &[&str] = &[
    "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_5) Safari/17.5",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/126.0",
    "curl/8.5.0",
    "okhttp/4.12.0",
    "python-requests/2.31.0",
];
const STATUS: &[&str] = &["pending", "paid", "shipped", "delivered", "returned", "cancelled"];
const LEVEL: &[&str] = &["debug", "info", "info", "info", "warn", "error"];
const METHOD: &[&str] = &["GET", "GET", "GET", "POST", "PUT", "DELETE"];

/// A run of 16 to 47 documents of one kind (users, orders, requests, products, sensors), one to
/// the line and 100 to 1,500 bytes long, as a table, a log or a listing has them: same keys, times
/// that follow one another, the same device or client for a while.
pub fn append_collection(out: &mut Vec<u8>, random: &mut Random) {
    let kind = [user, order, request, product, sensor][random.below(5) as usize];
    let mut run = Run {
        time: random.below(5 * 365 * 86_400_000),
        id: random.below(1 << 31),
        device: random.bits(),
        client: random.bits(),
    };
    for _ in 0..16 + random.below(32) {
        kind(out, random, &run);
        out.push(b'\n');
        run.time += random.below(40_000);
        run.id += 1 + random.below(3);
        if random.below(6) == 0 {
            run.client = random.bits();
        }
    }
}

/// What neighbouring documents have in common.
struct Run {
    /// Milliseconds since 2020.
    time: u64,
    id: u64,
    device: u64,
    client: u64,
}

/// `write!` into a vector cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => { let _ = write!($out, $($arg)*); };
}

fn user(out: &mut Vec<u8>, r: &mut Random, run: &Run) {
    let (first, last) = (r.pick(FIRST), r.pick(LAST));
    put!(out, r#"{{"type":"user","id":{},"uuid":"{}","#, run.id, Uuid(r.bits(), run.device));
    put!(out, r#""name":"{first} {last}","email":"{first}.{last}{}@example.org","#, r.below(99));
    put!(out, r#""city":"{}","joined":"{}","#, r.pick(CITY), Date(run.time));
    put!(out, r#""visits":{},"score":{:.2},"#, r.below(999), r.unit() * 10.0);
    put!(out, r#""tags":["{}","{}"],"active":{},"#, r.pick(WORD), r.pick(WORD), r.below(4) > 0);
    out.extend_from_slice(br#""locale":"en_GB","plan":"standard","bio":""#);
    let words = 4 + r.below(20);
    sentence(out, r, words);
    out.extend_from_slice(br#""}"#);
}

fn order(out: &mut Vec<u8>, r: &mut Random, run: &Run) {
    put!(out, r#"{{"type":"order","id":{},"customer":{},"#, run.id, r.below(1 << 24));
    put!(out, r#""placed":"{}","status":"{}","#, Date(run.time), r.pick(STATUS));
    out.extend_from_slice(br#""currency":"EUR","items":["#);
    for i in 0..1 + r.below(5) {
        if i > 0 {
            out.push(b',');
        }
        put!(out, r#"{{"sku":"{:06}","qty":{},"#, r.below(1_000_000), 1 + r.below(6));
        put!(out, r#""price":{}.{:02},"#, r.below(400), [0, 50, 95, 99][r.below(4) as usize]);
        put!(out, r#""title":"{} {}"}}"#, r.pick(WORD), r.pick(WORD));
    }
    put!(out, r#"],"total":{}.{:02},"#, r.below(3000), r.below(100));
    put!(out, r#""ship_to":{{"street":"{} Street {}","#, r.pick(LAST), r.below(300));
    put!(out, r#""city":"{}","zip":"{:05}"}}}}"#, r.pick(CITY), r.below(100_000));
}

fn request(out: &mut Vec<u8>, r: &mut Random, run: &Run) {
    put!(out, r#"{{"ts":"{}","level":"{}","#, Date(run.time), r.pick(LEVEL));
    put!(out, r#""service":"checkout","host":"web-{:02}","#, run.device % 40);
    put!(out, r#""method":"{}","path":"/api/v2/{}/"#, r.pick(METHOD), r.pick(WORD));
    put!(out, r#"{}","status":{},"#, r.below(100_000), 200 + r.below(5) * 51);
    put!(out, r#""us":{},"bytes":{},"#, r.below(90_000), r.below(65_536));
    put!(out, r#""ip":"10.{}.{}.7","#, run.client % 256, (run.client >> 8) % 256);
    put!(out, r#""trace":"{:016x}","#, r.bits());
    put!(out, r#""agent":"{}"}}"#, AGENT[(run.client >> 16) as usize % AGENT.len()]);
}

fn product(out: &mut Vec<u8>, r: &mut Random, run: &Run) {
    put!(out, r#"{{"type":"product","sku":"{:08}","#, run.id);
    put!(out, r#""name":"{} {}","price":{}.99,"#, r.pick(WORD), r.pick(WORD), r.below(900));
    put!(out, r#""stock":{},"weight_g":{},"#, r.below(5000), r.below(3000) * 10);
    put!(out, r#""size":[{},{},{}],"#, r.below(200), r.below(200), r.below(200));
    put!(out, r#""rating":{:.1},"warehouse":"{}","#, r.unit() * 5.0, r.pick(CITY));
    put!(out, r#""image":"https://cdn.example.org/products/{:08}.jpg","text":""#, run.id);
    let words = 15 + r.below(40);
    sentence(out, r, words);
    out.extend_from_slice(br#""}"#);
}

fn sensor(out: &mut Vec<u8>, r: &mut Random, run: &Run) {
    let device = run.device >> 16;
    put!(out, r#"{{"device":"{device:012x}","at":"{}","unit":"celsius","#, Date(run.time));
    out.extend_from_slice(br#""readings":["#);
    let mut level = 15.0 + (run.device % 100) as f64 / 10.0;
    for i in 0..6 + r.below(24) {
        if i > 0 {
            out.push(b',');
        }
        level += (r.unit() - 0.5) / 2.0;
        put!(out, "{level:.1}");
    }
    put!(out, r#"],"battery":{},"firmware":"4.{}.1"}}"#, r.below(100), run.device % 9);
}

/// Words by Zipf's law: the n-th of the list about 1/n as often as the first.
fn sentence(out: &mut Vec<u8>, r: &mut Random, words: u64) {
    for i in 0..words {
        if i > 0 {
            out.push(b' ');
        }
        // Inverse of the harmonic sum: rank = N^u for u uniform has density 1/rank.
        let rank = (WORD.len() as f64).powf(r.unit()) as usize;
        out.extend_from_slice(WORD[rank.min(WORD.len()) - 1].as_bytes());
        if i % 11 == 10 {
            out.push(if r.below(3) == 0 { b'.' } else { b',' });
        }
    }
}

/// English-like prose, in lines of some ten words: the stand-in for text files.
pub fn append_prose(out: &mut Vec<u8>, random: &mut Random, bytes: usize) {
    let end = out.len() + bytes;
    while out.len() < end {
        let words = 7 + random.below(8);
        sentence(out, random, words);
        if random.below(9) == 0 {
            put!(out, " ({}, {})", random.pick(LAST), 1950 + random.below(75));
        }
        out.extend_from_slice(if random.below(7) == 0 { b".\n\n" } else { b"\n" });
    }
}

struct Uuid(u64, u64);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (a, b) = (self.0, self.1);
        let (low, mid, high) = (a >> 32, (a >> 16) & 0xffff, a & 0xfff);
        write!(f, "{low:08x}-{mid:04x}-4{high:03x}-")?;
        write!(f, "{:04x}-{:012x}", 0x8000 | (b >> 50), b & 0xffff_ffff_ffff)
    }
}

/// Milliseconds since 2020, in a calendar of twelve months of thirty days: dates only need to look
/// like dates.
struct Date(u64);

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ms, second) = (self.0 % 1000, self.0 / 1000);
        let (day, second) = (second / 86_400, second % 86_400);
        write!(f, "{:04}-{:02}-{:02}T", 2020 + day / 360, 1 + day / 30 % 12, 1 + day % 30)?;
        write!(f, "{:02}:{:02}:{:02}.{ms:03}Z", second / 3600, second / 60 % 60, second % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_valid_json_of_a_sane_size() {
        let mut random = Random::new(11);
        for _ in 0..100 {
            let mut out = Vec::new();
            append_collection(&mut out, &mut random);
            for line in out.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                assert!(line.len() > 90 && line.len() < 2000, "{} bytes", line.len());
                serde_json::from_slice::<serde_json::Value>(line).expect("valid JSON");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let make = |seed| {
            let (mut out, mut random) = (Vec::new(), Random::new(seed));
            append_collection(&mut out, &mut random);
            append_prose(&mut out, &mut random, 500);
            out
        };
        assert_eq!(make(5), make(5));
        assert_ne!(make(5), make(6));
    }
}
