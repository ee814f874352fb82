//! Files that are right, and one for each way to be wrong.

use super::*;

fn read(text: &str) -> Result<Config> {
    parse("terrace.toml", text, Preset::Auto)
}

fn complaint(text: &str) -> String {
    let clashes = |config: Config| match config.clash() {
        Some(clash) => Err(blame("terrace.toml", text, &clash).expect("it is from here")),
        None => Ok(config),
    };
    read(text).and_then(clashes).expect_err("this text must be refused").to_string()
}

const DRAM: &str = "[[medium]]\nname = \"dram\"\nkind = \"dram\"\nusd_per_gib_month = 1\n";

#[test]
fn an_empty_file_is_the_preset() {
    assert_eq!(read("").unwrap(), Config::from_preset(Preset::Auto));
}

#[test]
fn every_key_is_read() {
    let config = read(
        r#"
        [[medium]]
        name = "main"
        kind = "dram"
        usd_per_gib_month = 2.5
        [[medium]]
        name = "far"
        kind = "emulated"
        usd_per_gib_month = 1
        latency_ns = 400
        bandwidth_mib_s = 1000
        [[tier]]
        codec = "zstd"
        level = -1
        pool = "zsmalloc"
        medium = "main"
        [[tier]]
        name = "last"
        codec = "deflate"
        pool = "zbud"
        medium = "far"
        [policy]
        kind = "waterfall"
        alpha = 0.9
        threshold = "45%"
        [run]
        window_s = 2
        move_threads = 3
        move_mib_s = 0
        samples_per_region = 8
        cutoff_bytes = 3000
        cooling_windows = 1
        "#,
    )
    .unwrap();
    assert_eq!(config.preset, "file");
    assert_eq!(config.dram().name, "main");
    assert_eq!(config.tiers[0].name, "zsmalloc+zstd-1+main");
    assert_eq!(config.tiers[0].level, -1);
    assert_eq!((config.tiers[1].name.as_str(), config.tiers[1].level), ("last", 6));
    assert_eq!(config.tiers[1].medium.latency_ns, 400);
    assert_eq!(config.policy.kind, PolicyKind::Waterfall);
    assert_eq!(config.policy.threshold, Threshold::Share(0.45));
    assert_eq!(
        config.run,
        RunConfig {
            window_s: 2.0,
            move_threads: 3,
            move_mib_s: 0,
            samples_per_region: 8,
            cutoff_bytes: 3000,
            cooling_windows: 1,
            torture_seed: 0
        }
    );
}

#[test]
fn a_file_with_a_price_only_reprices_the_preset() {
    let config = parse("t.toml", DRAM, Preset::Tierscape).unwrap();
    assert_eq!(config.preset, "tierscape");
    assert_eq!(config.tiers[0].medium.usd_per_gib_month, 1.0);
    assert_eq!(config.media.len(), 2, "the preset's slow medium is listed too");
}

#[test]
fn tiers_may_be_an_inline_list() {
    let text = "tier = [\n {codec=\"lz4\", pool=\"zbud\", medium=\"dram\"},\n {codec=\"lz5\"}]";
    assert!(complaint(text).starts_with("terrace.toml:3: tier.codec: \"lz5\""));
}

/// Line, key and text of each complaint; the text says how to mend it.
#[test]
fn each_mistake_names_line_key_and_remedy() {
    let tier = |line: &str| format!("{DRAM}[[tier]]\n{line}\n");
    let medium = |kind: &str, line: &str| {
        format!("[[medium]]\nname = \"m\"\nkind = {kind:?}\nusd_per_gib_month = 1\n{line}\n")
    };
    let cases: Vec<(String, &str)> =
        vec![
        ("\n[polcy]\n".into(), "2: polcy: unknown key; one of medium, tier, policy, \
             cold_age, run"),
        ("a = = 1".into(), "1: not valid TOML: "),
        ("policy = 3".into(), "1: policy: not a table; write it as [policy]"),
        ("[tier]\n".into(), "1: tier: not a list; write it as [[tier]]"),
        (
            "[policy]\n\nalpha = 1.5".into(),
            "3: policy.alpha: 1.5 is out of range; use 0 to 1 (0 saves",
        ),
        ("[policy]\nalpha = nan".into(), "2: policy.alpha: NaN is out of range"),
        ("[policy]\nalpha = \"x\"".into(), "2: policy.alpha: string found; write a number"),
        ("[policy]\nkind = \"lru\"".into(), "2: policy.kind: \"lru\" is not a policy; one of"),
        ("[policy]\nthreshold = \"145%\"".into(), "2: policy.threshold: \"145%\" is not a sha"),
        ("[policy]\nthreshold = \"hot\"".into(), "2: policy.threshold: \"hot\" is not a thre"),
        (
            "[policy]\nthreshold = -1".into(),
            "2: policy.threshold: -1 is out of range; use 0 to 512 (pages",
        ),
        (
            "[policy]\nalpha = 0.1\nmax_slowdown = \"5%\"".into(),
            "3: policy.max_slowdown: it chooses the policy slowdown, and alpha chooses analytical;",
        ),
        (
            "[policy]\nbudget_money = 3\nmax_slowdown = \"5%\"".into(),
            "2: policy.budget_money: a budget of money and max_slowdown exclude each other; remo",
        ),
        (
            "[policy]\nkind = \"two-tier\"\ntwo_tier = 5".into(),
            "3: policy.two_tier: there is no tier 5; use 1 to 3",
        ),
        (
            "[policy]\nkind = \"cold-age\"\n[cold_age]\nminute_s = 1".into(),
            "4: cold_age.minute_s: a minute of 1 s is shorter than the window of 5 s; make",
        ),
        (
            "[policy]\nkind = \"cold-age\"\n[cold_age]\nscan_s = 2".into(),
            "4: cold_age.scan_s: a scan of 2 s is shorter than the window of 5 s; make the win",
        ),
        (
            "[run]\nwindow_s = 90\n[policy]\nkind = \"cold-age\"".into(),
            "2: run.window_s: a minute of 60 s is shorter than the window of 90 s; make the win",
        ),
        ("[policy]\nbeta = 1".into(), "2: policy.beta: unknown key; one of kind, alpha, budg"),
        ("[run]\nwindow_s = 0".into(), "2: run.window_s: 0 is out of range; use 0.1 to 86400"),
        ("[run]\nmove_threads = 0".into(), "2: run.move_threads: 0 is out of range; use 1 to 8"),
        ("[run]\nmove_mib_s = -5".into(), "2: run.move_mib_s: -5 is out of range; use 0 to"),
        ("[run]\nsamples_per_region = 513".into(), "2: run.samples_per_region: 513 is out of"),
        ("[run]\ncutoff_bytes = 5000".into(), "2: run.cutoff_bytes: 5000 is out of range"),
        ("[run]\ncooling_windows = 99".into(), "2: run.cooling_windows: 99 is out of range"),
        (
            "[[medium]]\nname = \"a\"\nkind = \"tape\"".into(),
            "3: medium.kind: \"tape\" is not a kind; one of dram, emulated, numa, file, dax",
        ),
        (
            "[[medium]]\nname = \"a\"\nkind = \"dram\"".into(),
            "1: medium.usd_per_gib_month: missing; add the price",
        ),
        (
            "[[medium]]\nname = \"a\"\nkind = \"dram\"\nusd_per_gib_month = -1".into(),
            "4: medium.usd_per_gib_month: -1 is out of range; use 0 to 1000 (US dollars",
        ),
        (format!("{DRAM}latency_ns = 3"), "5: medium.latency_ns: only an emulated medium"),
        (
            format!("{DRAM}\n[[medium]]\nname = \"dram\""),
            "7: medium.name: \"dram\" is defined twice; give one another name",
        ),
        (
            format!("{DRAM}[[medium]]\nname = \"b\"\nkind = \"dram\""),
            "7: medium.kind: there is one dram medium already",
        ),
        (
            "[[medium]]\nname = \"s\"\nkind = \"emulated\"\nusd_per_gib_month = 1".into(),
            "1: medium: an emulated medium must state latency_ns and bandwidth_mib_s",
        ),
        (medium("numa", ""), "1: medium.node: missing; add the number"),
        (medium("numa", "node = 1000"), "5: medium.node: this machine has no node 1000"),
        (medium("numa", "node = 5000"), "5: medium.node: 5000 is out of range; use 0 to 1023"),
        (medium("numa", "directory = \"/tmp\""), "5: medium.directory: only a file lies in a"),
        (medium("file", "directory = \"/tmp\""), "1: medium.capacity_mib: missing; say how much"),
        (medium("file", "capacity_mib = 5"), "1: medium.directory: missing; add a directory"),
        (
            medium("file", "capacity_mib = 5\ndirectory = \"/nowhere/x\""),
            "6: medium.directory: \"/nowhere/x\" cannot hold a file: No such file or directory",
        ),
        (
            medium("file", "capacity_mib = 5\ndirectory = \"/proc\""),
            "6: medium.directory: \"/proc\" cannot hold a file: ",
        ),
        (medium("file", "capacity_mib = 0"), "5: medium.capacity_mib: 0 is out of range; use 1"),
        (medium("file", "encrypt = true"), "5: medium.encrypt: only for dax is that a choice"),
        (medium("file", "node = 0"), "5: medium.node: only memory of kind numa has a node; remo"),
        (medium("dax", ""), "1: medium.path: missing; add the device or file"),
        (medium("dax", "path = \"/dev/null\""), "5: medium.path: \"/dev/null\" is no DAX device"),
        (
            medium("dax", "path = \"/dev/null\"\nencrypt = 1"),
            "6: medium.encrypt: integer found; write true or false",
        ),
        (
            medium("dax", "path = \"/dev/null\"\nstand_in = 1"),
            "6: medium.stand_in: integer found; write true or false",
        ),
        (medium("file", "stand_in = true"), "5: medium.stand_in: only a dax medium has a device"),
        (medium("dax", "latency_ns = 3"), "5: medium.latency_ns: only an emulated medium"),
        (format!("{DRAM}capacity_mib = 3"), "5: medium.capacity_mib: memory is as large as it is"),
        (tier(""), "5: tier.codec: missing; add codec ="),
        (
            tier("pool = \"zbud\"\ncodec = \"lz5\""),
            "7: tier.codec: \"lz5\" is not a codec; one of lz4, lzo, deflate, zstd, lz4hc, \
             lzo-rle, 842",
        ),
        (
            tier("codec = \"lz4\"\npool = \"slab\""),
            "7: tier.pool: \"slab\" is not a pool; one of zbud, zsmalloc, z3fold",
        ),
        (
            tier("codec = \"lz4\"\npool = \"zbud\"\nmedium = \"cxl\""),
            "8: tier.medium: \"cxl\" is not defined; add a [[medium]] with this name or use",
        ),
        (
            tier("codec = \"zstd\"\npool = \"zbud\"\nmedium = \"dram\"\nblock_kib = 60"),
            "9: tier.block_kib: 60 is no size of a block; use one of 16, 32, 64",
        ),
        (
            tier("codec = \"lz4\"\npool = \"zbud\"\nmedium = \"dram\"\nblock_kib = 64"),
            "9: tier.block_kib: only zstd compresses blocks, and this tier's codec is lz4; remove",
        ),
        (
            tier("codec = \"lzo\"\npool = \"zbud\"\nmedium = \"dram\"\nlevel = 9"),
            "9: tier.level: 9 is out of range; use 1 to 1 (levels of lzo)",
        ),
        (tier("codec = 4"), "6: tier.codec: integer found; write a string in quotes"),
    ];
    for (text, expected) in cases {
        let got = complaint(&text);
        let expected = format!("terrace.toml:{expected}");
        assert!(got.starts_with(&expected), "for {text:?}\n got {got}\nwant {expected}");
    }
}

#[test]
fn tiers_are_bounded_and_have_distinct_names() {
    let tier = "[[tier]]\ncodec=\"lz4\"\npool=\"zbud\"\nmedium=\"dram\"\n";
    let twice = format!("{tier}{tier}");
    assert!(complaint(&twice).starts_with("terrace.toml:5: tier.name: \"zbud+lz4+dram\""));
    let mut text = String::new();
    for n in 0..=COMPRESSED_TIERS_MAX {
        text += &format!("{tier}name=\"t{n}\"\n");
    }
    assert!(complaint(&text).starts_with("terrace.toml:76: tier: more than 15 tiers; remove"));
}

#[test]
fn media_that_are_there_are_read_and_written_back_the_same() {
    let folder = std::env::temp_dir();
    let text = format!(
        "{DRAM}[[medium]]\nname = \"disk\"\nkind = \"file\"\nusd_per_gib_month = 0.01\n\
         directory = {folder:?}\ncapacity_mib = 64\n\
         [[tier]]\ncodec = \"lz4\"\npool = \"zbud\"\nmedium = \"disk\"\n"
    );
    let config = read(&text).unwrap();
    let disk = &config.tiers[0].medium;
    assert_eq!(disk.kind, MediumKind::File);
    assert_eq!(disk.place.path, folder.to_string_lossy().trim_end_matches('/'));
    assert_eq!((disk.place.capacity_bytes, disk.place.node), (64 << 20, 0));
    assert_eq!(read(&crate::media::toml(disk)).unwrap().media[1], *disk);
    assert!(crate::media::describe(disk).contains(", 64 MiB, encrypted, "));
}

#[test]
fn blocks_have_a_level_and_names_of_their_own() {
    let of = |rest: &str| {
        let keys = "[[tier]]\ncodec = \"zstd\"\npool = \"zsmalloc\"\nmedium = \"dram\"\n";
        let config = parse("t", &format!("{keys}{rest}"), Preset::Auto).unwrap();
        let tier = &config.tiers[0];
        (tier.name.clone(), tier.level, tier.block_kib)
    };
    assert_eq!(of("block_kib = 64"), ("zsmalloc+zstd+64k+dram".into(), 3, 64));
    assert_eq!(of("block_kib = 16\nlevel = 9"), ("zsmalloc+zstd+9+16k+dram".into(), 9, 16));
    assert_eq!(of("block_kib = 0"), ("zsmalloc+zstd+dram".into(), 1, 0));
}
