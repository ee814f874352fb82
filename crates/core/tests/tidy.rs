//! Style as a test, over the whole repository. Each rule is a test of its own; what it prints says
//! where the rule is broken and how to mend it.
//!
//! Only rules that a program can decide without judgement are here, and none that the compiler,
//! rustfmt or clippy already holds. An exception is listed with its reason, and a listed exception
//! that is no longer needed breaks its rule, too: the lists are exact.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of a line of Rust or Python. Markdown and tables in comments are exempt: a row cannot
/// be broken.
const COLUMNS_MAX: usize = 100;
/// Lines of a source file. At this size ask what second idea has moved in.
const LINES_MAX: usize = 800;

/// Where `unsafe` may be written, and why there. A folder ends with `/`.
const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("crates/preload/src/sys/", "the door to Linux: ioctls, mappings, threads"),
    ("crates/preload/src/interpose.rs", "C symbols that the application's calls land on"),
    ("crates/preload/tests/simulation/main.rs", "functions with the names of libc's"),
    ("crates/preload/tests/simulation/kernel/uffd.rs", "reads and writes what system calls lend"),
    ("crates/preload/tests/simulation/schedule.rs", "the fiber that runs gives up its turn"),
    ("crates/preload/tests/simulation/agent.rs", "a leaked runtime, by its address"),
    ("crates/preload/tests/simulation/world.rs", "frees what a runtime took for good"),
    ("crates/store/src/codec/lz4.rs", "calls the C codec"),
    ("crates/store/src/codec/lz4hc.rs", "calls the C codec"),
    ("crates/store/src/codec/deflate.rs", "calls the C codec"),
    ("crates/store/src/codec/zstd.rs", "calls the C codec"),
    ("crates/store/src/medium/device.rs", "file flags, holes in files, random bytes"),
    ("crates/store/src/codec/block.rs", "calls the C codec"),
    ("crates/store/src/codec/lz4_dict.rs", "calls the C codec"),
    ("crates/store/src/codec/zstd_dict.rs", "calls the C codec"),
    ("crates/store/tests/no_allocation.rs", "a global allocator that counts"),
    ("crates/cli/src/run/signals.rs", "signal dispositions while a program runs under us"),
    ("crates/cli/src/run/pageout.rs", "pages of another process, for the comparison with zswap"),
    ("crates/cli/src/preflight/uffd_probe.rs", "tries userfaultfd"),
    ("crates/cli/src/doctor/probes.rs", "tries perf events, reads limits"),
    ("crates/cli/src/demo/sys.rs", "signals and poll for the demo"),
    ("crates/cli/src/bench/kernel_swap/sys.rs", "swap, one mapping, one CPU"),
    ("crates/cli/src/bench/kernel_swap/bare.rs", "serves faults of one mapping, to measure that"),
];

/// The attribute that each root of a crate must have. The runtime has none: it is the unsafe
/// crate, and the list above confines it.
const UNSAFE_LINTS: &[(&str, &str)] = &[
    ("crates/core/src/lib.rs", "#![forbid(unsafe_code)]"),
    ("crates/store/src/lib.rs", "#![deny(unsafe_code)]"),
    ("crates/cli/src/lib.rs", "#![deny(unsafe_code)]"),
];

/// A call that may not be made in a part of the tree, outside of tests.
struct Banned {
    call: &'static str,
    under: &'static str,
    instead: &'static str,
    /// Files in which it is right.
    but: &'static [&'static str],
}

const BANNED: &[Banned] = &[
    Banned {
        call: ".unwrap()",
        under: "crates/preload/src/",
        instead: "return, or end the program with sys::proc::die; a panic aborts the application",
        but: &[],
    },
    Banned {
        call: ".expect(",
        under: "crates/preload/src/",
        instead: "return, or end the program with sys::proc::die; a panic aborts the application",
        but: &[],
    },
    Banned {
        call: "println!",
        under: "crates/preload/src/",
        instead: "count it in stats or report it to the planner; stdout is the application's",
        but: &[],
    },
    Banned {
        call: "println!",
        under: "crates/store/src/",
        instead: "return it; this code runs inside the application, whose stdout it is",
        but: &[],
    },
    Banned {
        call: "eprintln!",
        under: "crates/cli/src/",
        instead:
            "use say!, which does not end us with a program under us when a log's disk is full",
        but: &[],
    },
    Banned {
        call: "eprint!",
        under: "crates/cli/src/",
        instead: "use say::piece, which does not end us when standard error cannot be written",
        but: &[],
    },
    Banned {
        call: "thread::Builder",
        under: "crates/preload/src/",
        instead: "use sys::thread::spawn, whose threads block all signals and use own memory",
        but: &[],
    },
    Banned {
        call: "std::thread::spawn",
        under: "crates/preload/src/",
        instead: "use sys::thread::spawn, whose threads block all signals and use own memory",
        but: &[],
    },
    Banned {
        call: "thread_local!",
        under: "crates/preload/src/",
        instead: "hand the state in; thread-local storage may be allocated by libc on first use",
        but: &[],
    },
    Banned {
        call: "thread_local!",
        under: "crates/store/src/",
        instead: "hand the state in; thread-local storage may be allocated by libc on first use",
        but: &[],
    },
    Banned {
        call: "std::time::",
        under: "crates/core/src/",
        instead: "hand the time in; the core is the same live, simulated and tested",
        but: &[],
    },
    Banned {
        call: "std::fs",
        under: "crates/core/src/",
        instead: "hand the content in; the core does no I/O",
        but: &[],
    },
    Banned {
        call: "std::thread",
        under: "crates/core/src/",
        instead: "leave threads to the caller; the core starts none",
        but: &[],
    },
];

/// Hosts and options that belong into a developer's own configuration, in two pieces so that this
/// file does not name them.
const REGISTRY_WORDS: &[(&str, &str)] = &[
    ("crates", ".io"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("npmjs", ".org"),
    ("proxy.go", "lang.org"),
    ("--index", "-url"),
    ("replace", "-with"),
];

/// Where `Cargo.lock` may take packages from.
const PUBLIC_INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Suffixes of text files that people write.
const TEXT: &[&str] = &[
    "rs", "py", "c", "h", "md", "toml", "lock", "ini", "css", "sh", "yml", "yaml", "html", "json",
];
/// Text files without a suffix.
const TEXT_NAMES: &[&str] = &["Makefile", "LICENSE", "run", ".gitignore"];
/// Folders whose name begins with a dot and that are ours.
const DOT_FOLDERS: &[&str] = &[".ci", ".cargo", ".config", ".github"];
/// Folders that are made, not written.
const MADE_FOLDERS: &[&str] = &["target", "build", "node_modules", "__pycache__"];

/// A text file of the repository.
struct Source {
    /// From the root, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn is(&self, suffixes: &[&str]) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or("");
        name.rsplit_once('.').is_some_and(|(_, suffix)| suffixes.contains(&suffix))
    }

    /// Its lines with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(n, line)| (n + 1, line))
    }

    /// Its lines without comments and without the tests at its foot; none of a file of tests.
    fn product_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let name = self.path.rsplit('/').next().unwrap_or("");
        let is_test = ["tests.rs", "fuzz.rs", "testing.rs"].iter().any(|end| name.ends_with(end));
        let lines: Vec<&str> = self.text.lines().collect();
        let foot = lines
            .windows(2)
            .position(|two| two[0] == "#[cfg(test)]" && two[1].ends_with('{'))
            .unwrap_or(lines.len());
        self.lines().take(if is_test { 0 } else { foot }).map(|(n, line)| (n, code(line)))
    }
}

/// A line without its comment. A `//` in a string ends it too early, which hides what follows; the
/// rules can live with that.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

/// Whether `word` stands in `line` and is not a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        !part(line[..at].chars().next_back()) && !part(line[at + word.len()..].chars().next())
    })
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository that this was built from is still there")
}

/// Every text file of the repository, in order.
fn sources() -> Vec<Source> {
    let root = root();
    let mut open = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a readable tree").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let ours = !name.starts_with('.') || DOT_FOLDERS.contains(&name.as_str());
                if ours && !MADE_FOLDERS.contains(&name.as_str()) {
                    open.push(path);
                }
                continue;
            }
            let suffix = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            if TEXT.contains(&suffix.as_str()) || TEXT_NAMES.contains(&name.as_str()) {
                let from_root = path.strip_prefix(&root).expect("below the root");
                // What is no text, or went away while we looked, is nobody's style.
                if let Ok(text) = fs::read_to_string(&path) {
                    found.push(Source { path: from_root.to_string_lossy().into_owned(), text });
                }
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "only {} files below {}", found.len(), root.display());
    found
}

/// Fails with all places at once, and how to mend them.
fn none(places: Vec<String>, mend: &str) {
    assert!(places.is_empty(), "{mend}:\n  {}\n", places.join("\n  "));
}

/// The places in `sources` where `broken` says so.
fn lines_where(sources: &[&Source], broken: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut places = Vec::new();
    for s in sources {
        places.extend(
            s.lines()
                .filter(|(_, line)| broken(line))
                .map(|(n, line)| format!("{}:{n}: {}", s.path, line.trim())),
        );
    }
    places
}

/// This file, which names what it forbids.
fn is_this(source: &Source) -> bool {
    source.path.ends_with("core/tests/tidy.rs")
}

/// A line fits a window: at most 100 columns.
#[test]
fn lines_are_short() {
    let all = sources();
    let code: Vec<&Source> = all.iter().filter(|s| s.is(&["rs", "py"])).collect();
    let is_table_row = |line: &str| line.starts_with("//! |") || line.starts_with("/// |");
    let long = |line: &str| line.chars().count() > COLUMNS_MAX && !is_table_row(line);
    none(
        lines_where(&code, &long),
        "longer than 100 columns; break the line, rustfmt does not break strings and attributes",
    );
}

/// A file holds one idea: at most 800 lines.
#[test]
fn files_are_short() {
    let long = sources().into_iter().filter(|s| s.is(&["rs", "py", "c", "h", "css"]));
    let long = long.map(|s| (s.text.lines().count(), s.path)).filter(|(n, _)| *n > LINES_MAX);
    none(
        long.map(|(n, path)| format!("{path}: {n} lines")).collect(),
        "longer than 800 lines; find the second idea in the file and give it its own",
    );
}

/// `unsafe` stands in the named rooms only, and each room needs its name.
#[test]
fn unsafe_stays_in_its_rooms() {
    let forms = ["{", "fn", "impl", "extern", "trait"].map(|tail| format!("unsafe {tail}"));
    let has_unsafe = |s: &Source| {
        s.lines().any(|(_, line)| forms.iter().any(|form| has_word_start(code(line), form)))
    };
    let with: Vec<String> = sources()
        .iter()
        .filter(|s| s.is(&["rs"]) && !is_this(s) && has_unsafe(s))
        .map(|s| s.path.clone())
        .collect();
    let in_room = |path: &str, room: &str| match room.strip_suffix('/') {
        Some(_) => path.starts_with(room),
        None => path == room,
    };
    let outside = with.iter().filter(|p| !UNSAFE_ROOMS.iter().any(|(room, _)| in_room(p, room)));
    none(
        outside.cloned().collect(),
        "unsafe outside of its rooms; call what a room offers, or name the file in UNSAFE_ROOMS \
         of crates/core/tests/tidy.rs with the reason",
    );
    let empty = UNSAFE_ROOMS.iter().filter(|(room, _)| !with.iter().any(|p| in_room(p, room)));
    none(
        empty.map(|(room, _)| (*room).to_owned()).collect(),
        "no unsafe there any more; take the room off UNSAFE_ROOMS in crates/core/tests/tidy.rs",
    );
}

/// Like [`has_word`], for a form that ends with a sign.
fn has_word_start(line: &str, form: &str) -> bool {
    line.match_indices(form).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// The compiler holds crates to the rooms, too.
#[test]
fn crates_forbid_unsafe() {
    let without = UNSAFE_LINTS.iter().filter(|(path, lint)| {
        !fs::read_to_string(root().join(path)).unwrap_or_default().lines().any(|l| l == *lint)
    });
    none(
        without.map(|(path, lint)| format!("{path}: {lint}")).collect(),
        "the attribute is missing; add it, and #![allow(unsafe_code)] at the head of each room",
    );
}

/// Nothing is left for later in the code; what is left to do is an issue.
#[test]
fn nothing_is_left_for_later() {
    let all = sources();
    let ours: Vec<&Source> = all.iter().filter(|s| !is_this(s) && !s.is(&["lock"])).collect();
    let words = ["TODO", "FIXME", "XXX"];
    let calls = ["dbg!(", "todo!(", "unimplemented!("];
    let left = |line: &str| {
        words.iter().any(|w| has_word(line, w)) || calls.iter().any(|c| line.contains(c))
    };
    none(lines_where(&ours, &left), "left for later; do it, or open an issue and delete the line");
}

/// What must not be called where.
#[test]
fn banned_calls_are_not_made() {
    let all = sources();
    for ban in BANNED {
        let mut places = Vec::new();
        for s in all.iter().filter(|s| s.path.starts_with(ban.under) && s.is(&["rs"])) {
            let lines: Vec<usize> =
                s.product_code().filter(|(_, l)| l.contains(ban.call)).map(|(n, _)| n).collect();
            if ban.but.contains(&s.path.as_str()) {
                assert!(!lines.is_empty(), "{} needs no exception for {}", s.path, ban.call);
            } else {
                places.extend(lines.iter().map(|n| format!("{}:{n}", s.path)));
            }
        }
        none(places, &format!("{} is banned under {}; {}", ban.call, ban.under, ban.instead));
    }
}

/// The tree means the same on every machine: no absolute path of the one it was written on.
#[test]
fn no_path_of_a_developer_machine() {
    let folders = ["work", "home", "root"].map(|name| format!("/{name}/"));
    let all = sources();
    let named = |line: &str| {
        folders.iter().any(|folder| {
            // Part of a longer path, such as a crate's own `src/home/`, is none.
            line.match_indices(folder.as_str()).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-}/".contains(c))
            })
        })
    };
    none(
        lines_where(&all.iter().collect::<Vec<_>>(), &named),
        "absolute path of one machine; make it relative, or ask for it",
    );
}

/// Where packages come from is the builder's business: no registry, mirror or proxy is named.
#[test]
fn no_registry_is_named() {
    let all = sources();
    let words: Vec<String> = REGISTRY_WORDS.iter().map(|(a, b)| format!("{a}{b}")).collect();
    let ours: Vec<&Source> = all.iter().filter(|s| !is_this(s) && !s.is(&["lock"])).collect();
    let named = |line: &str| words.iter().any(|w| line.contains(w.as_str()));
    none(
        lines_where(&ours, &named),
        "a registry is named; leave it to the builder's configuration",
    );
    let locks: Vec<&Source> = all.iter().filter(|s| s.is(&["lock"])).collect();
    let foreign = |line: &str| line.starts_with("source = ") && !line.contains(PUBLIC_INDEX);
    none(lines_where(&locks, &foreign), "not from the public index; lock without a mirror");
}

/// A link of a document leads somewhere.
#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for s in sources().iter().filter(|s| s.is(&["md"])) {
        let folder = root().join(&s.path).parent().map(Path::to_path_buf).unwrap_or_default();
        let mut fenced = false;
        for (n, line) in s.lines() {
            fenced ^= line.trim_start().starts_with("```");
            for link in line.split("](").skip(1).filter(|_| !fenced) {
                let target = link.split([')', ' ', '#']).next().unwrap_or("");
                let outside = target.contains("://") || target.starts_with("mailto:");
                if !outside && !target.is_empty() && !folder.join(target).exists() {
                    broken.push(format!("{}:{n}: {target}", s.path));
                }
            }
        }
    }
    none(broken, "the link leads nowhere; mend it, links are relative to the document");
}

/// Every module has its file, and every file is a module.
#[test]
fn modules_and_files_are_the_same() {
    let all: Vec<Source> =
        sources().into_iter().filter(|s| s.path.contains("/src/") && s.is(&["rs"])).collect();
    let files: BTreeSet<&str> = all.iter().map(|s| s.path.as_str()).collect();
    let is_root = |path: &str| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let mut named: BTreeSet<String> = BTreeSet::new();
    let mut missing = Vec::new();
    for s in &all {
        for (n, module) in modules(s) {
            match [module.clone(), format!("{module}.rs"), format!("{module}/mod.rs")]
                .into_iter()
                .find(|path| files.contains(path.as_str()))
            {
                Some(path) => {
                    named.insert(path);
                }
                None => missing.push(format!("{}:{n}: {module}.rs", s.path)),
            }
        }
    }
    none(missing, "the module has no file; write it or take the line out");
    let dead = files.iter().filter(|path| !is_root(path) && !named.contains(**path));
    none(
        dead.map(|path| (*path).to_owned()).collect(),
        "no module: the file is never compiled; name it with `mod` or delete it",
    );
}

/// The files that the `mod NAME;` lines of a file ask for: without suffix, or as `#[path]` names
/// them.
fn modules(source: &Source) -> Vec<(usize, String)> {
    let stem = source.path.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let own = if ["lib", "main", "mod"].contains(&name) { folder } else { stem };
    // Modules written in place add a folder each; rustfmt has them begin and end at one indent.
    let mut inside: Vec<(usize, String)> = Vec::new();
    let mut asked = Vec::new();
    let mut by_path = None;
    for (n, line) in source.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = code(line).trim();
        if line == "}" && inside.last().is_some_and(|(at, _)| *at == indent) {
            inside.pop();
        }
        let bare = match line.strip_prefix("pub").map(str::trim_start) {
            Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or("", |(_, r)| r),
            Some(rest) => rest,
            None => line,
        };
        if let Some(path) = line.strip_prefix("#[path = \"") {
            by_path = path.strip_suffix("\"]").map(|path| format!("{folder}/{path}"));
        }
        let Some(module) = bare.trim_start().strip_prefix("mod ") else { continue };
        if let Some(path) = by_path.take() {
            asked.push((n, path));
        } else if let Some(name) = module.strip_suffix(';') {
            let path: String = inside.iter().map(|(_, folder)| format!("{folder}/")).collect();
            asked.push((n, format!("{own}/{path}{name}")));
        } else if let Some(name) = module.strip_suffix(" {") {
            inside.push((indent, name.to_owned()));
        }
    }
    asked
}

/// The rules see what they are made to see.
#[test]
fn rules_see_what_they_should() {
    assert!(has_word("// XXX later", "XXX") && !has_word("\"hazard-XXXXXX\"", "XXX"));
    assert!(
        has_word_start("    unsafe { x }", "unsafe {")
            && !has_word_start("an_unsafe {", "unsafe {")
    );
    let file = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let lib = file("a/src/lib.rs", "pub mod x {\n    mod y;\n}\npub(crate) mod z; // why\n");
    let asked: Vec<String> = modules(&lib).into_iter().map(|(_, path)| path).collect();
    assert_eq!(asked, ["a/src/x/y", "a/src/z"]);
    assert_eq!(modules(&file("a/src/z.rs", "mod w;"))[0].1, "a/src/z/w");
    let elsewhere = file("a/src/z.rs", "#[path = \"z_tests.rs\"]\nmod tests;");
    assert_eq!(modules(&elsewhere)[0].1, "a/src/z_tests.rs");
    let tested = file("a/src/z.rs", "a();\nb(); // c\n#[cfg(test)]\nmod tests {\n    d();\n}\n");
    let product: Vec<&str> = tested.product_code().map(|(_, line)| line).collect();
    assert_eq!(product, ["a();", "b(); "]);
    assert_eq!(file("a/src/pool/fuzz.rs", "a();").product_code().count(), 0);
}
