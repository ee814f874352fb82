use super::*;
use proptest::prelude::*;

fn body(bytes: &[u8]) -> &[u8] {
    let (body, used) = split_message(bytes).unwrap().unwrap();
    assert_eq!(used, bytes.len());
    body
}

fn tier() -> TierConfig {
    TierConfig {
        codec: Codec::Zstd,
        level: -3,
        pool: Pool::Zsmalloc,
        medium: MediumKind::Emulated,
        latency_ns: 300,
        bandwidth_mib_s: 2000,
        place: Place::default(),
        block_kib: 0,
        cutoff_bytes: 3500,
    }
}

fn on(kind: MediumKind, path: &str) -> TierConfig {
    let place = Place {
        path: path.into(),
        node: 3,
        capacity_bytes: 5 << 40,
        is_enciphered: kind == MediumKind::Dax,
    };
    TierConfig { medium: kind, place, ..tier() }
}

fn configure(tiers: Vec<TierConfig>) -> ToRuntime {
    ToRuntime::Configure(Configure {
        cutoff_bytes: 2990,
        samples_per_region: 8,
        cooling_windows: 1,
        move_threads: 2,
        move_mib_s: 0,
        tiers,
        torture_seed: 0,
        note: "how it was asked for".into(),
        watching: Watching::Ages,
    })
}

#[test]
fn every_message_survives_the_wire() {
    let configure = Configure {
        cutoff_bytes: 2990,
        samples_per_region: 8,
        cooling_windows: 1,
        move_threads: 1,
        move_mib_s: 400,
        tiers: vec![
            tier(),
            on(MediumKind::Numa, ""),
            on(MediumKind::File, "/var/tmp"),
            on(MediumKind::Dax, "/dev/dax0.0"),
            TierConfig { block_kib: 64, ..tier() },
        ],
        torture_seed: 0x1122_3344_5566_7788,
        note: "[policy]\n".into(),
        watching: Watching::Use,
    };
    let again = Hello {
        window: 400,
        in_force: Some(configure.clone()),
        ..Hello::of_version(VERSION, 9, 1)
    };
    let entry = PlanEntry { region: 0x7f00_0020_0000, tier: TierId(3) };
    for m in [
        ToRuntime::Configure(configure),
        ToRuntime::Window { number: 7, spare_bytes: 9 << 40, soon_windows: 3 },
        ToRuntime::Plan(vec![entry; 3]),
    ] {
        assert_eq!(ToRuntime::decode(body(&m.encode())), Ok(m));
    }
    let mut shrunk = Shrunk::default();
    shrunk.note(2, 0.25, 0.5);
    shrunk.note(15, 0.5, 1.0);
    let report = Report {
        window: 3,
        regions: vec![
            RegionReport { region: 1 << 21, faults: 9, shrunk, ..Default::default() },
            RegionReport { region: 2 << 21, tier: 3, ..Default::default() },
        ],
        tiers: vec![TierReport {
            refused: [1, 2, 3, 4, 5, 6],
            estimated_encode_ns: 7,
            estimated_encoded_milli: 330,
            estimated_packed_milli: 590,
            fault_ns_total: 1 << 40,
            ..Default::default()
        }],
        rss_bytes: 1,
        waking_ns: 11,
        fresh_ns: 5,
        fault_overhead_ns: 12,
        given_up_pages: 13,
        reused_pages: 14,
        copied_pages: 15,
        ..Default::default()
    };
    for m in [
        FromRuntime::Hello(Hello::of_version(VERSION, 9, 0x1ffff)),
        FromRuntime::Hello(again),
        FromRuntime::Report(Box::new(report)),
        FromRuntime::Refused("no userfaultfd".into()),
    ] {
        assert_eq!(FromRuntime::decode(body(&m.encode())), Ok(m));
    }
}

#[test]
fn sizes_of_repeated_items_are_what_the_bounds_assume() {
    let empty = ToRuntime::Plan(vec![]).encode().len();
    let entry = PlanEntry { region: 0, tier: TierId(0) };
    assert_eq!(ToRuntime::Plan(vec![entry]).encode().len() - empty, PLAN_ENTRY_BYTES);
    let none = configure(vec![]).encode().len();
    let one = configure(vec![on(MediumKind::Numa, "")]).encode().len();
    assert_eq!(one - none, TIER_CONFIG_BYTES);
    let none = encode_report(&Report::default()).len();
    let one = Report { regions: vec![RegionReport::default()], ..Default::default() };
    assert_eq!(encode_report(&one).len() - none, REGION_REPORT_BYTES);
    let one = Report { tiers: vec![TierReport::default()], ..Default::default() };
    assert_eq!(encode_report(&one).len() - none, TIER_REPORT_BYTES);
}

#[test]
fn what_is_decoded_is_a_few_times_as_long_as_its_bytes() {
    for (size, bytes) in [
        (size_of::<PlanEntry>(), PLAN_ENTRY_BYTES),
        (size_of::<TierConfig>(), TIER_CONFIG_BYTES),
        (size_of::<RegionReport>(), REGION_REPORT_BYTES),
        (size_of::<TierReport>(), TIER_REPORT_BYTES),
    ] {
        assert!(size <= 4 * bytes, "{size} bytes for {bytes}");
    }
}

#[test]
fn the_pager_waits_for_no_emulated_medium_longer_than_a_second() {
    for (latency_ns, is_sane) in
        [(0, true), (LATENCY_NS_MAX, true), (LATENCY_NS_MAX + 1, false), (u64::MAX, false)]
    {
        let message = configure(vec![TierConfig { latency_ns, ..tier() }]);
        let decoded = ToRuntime::decode(body(&message.encode()));
        assert_eq!(decoded, if is_sane { Ok(message) } else { Err(Malformed) }, "{latency_ns}");
    }
}

#[test]
fn a_path_is_absolute_and_bounded() {
    let long = format!("/{}", "x".repeat(PATH_BYTES_MAX - 1));
    let good = configure(vec![on(MediumKind::File, &long)]);
    assert_eq!(ToRuntime::decode(body(&good.encode())), Ok(good));
    for path in ["tmp", "./x", "/a\0b", &format!("{long}y"), &"é".repeat(PATH_BYTES_MAX)] {
        let bad = configure(vec![on(MediumKind::File, path), tier()]);
        assert_eq!(ToRuntime::decode(body(&bad.encode())), Err(Malformed), "{path:?}");
    }
    let mut bytes = configure(vec![on(MediumKind::File, "/v")]).encode();
    let at = bytes.windows(2).position(|w| w == b"/v").unwrap();
    bytes[at + 1] = 0xff;
    assert_eq!(ToRuntime::decode(body(&bytes)), Err(Malformed), "not UTF-8");
}

#[test]
fn blocks_are_of_three_sizes_and_of_zstd() {
    let decode = |t| ToRuntime::decode(body(&configure(vec![t]).encode()));
    for block_kib in 0..=u8::MAX {
        let good = block_kib == 0 || BLOCK_KIB.contains(&block_kib);
        assert_eq!(decode(TierConfig { block_kib, ..tier() }).is_ok(), good, "{block_kib}");
        let lz4 = TierConfig { block_kib, codec: Codec::Lz4, level: 1, ..tier() };
        assert_eq!(decode(lz4).is_ok(), block_kib == 0);
    }
}

#[test]
fn a_plan_cannot_name_what_is_not_a_region() {
    for region in [4096, 1u64 << 47, 0xffff_ffff_ffe0_0000] {
        let plan = ToRuntime::Plan(vec![PlanEntry { region, tier: TierId(1) }]);
        assert_eq!(ToRuntime::decode(body(&plan.encode())), Err(Malformed), "{region:#x}");
    }
    let plan = ToRuntime::Plan(vec![PlanEntry { region: 0, tier: TierId(200) }]);
    assert_eq!(ToRuntime::decode(body(&plan.encode())), Err(Malformed));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_malformed(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = ToRuntime::decode(&bytes);
        let _ = FromRuntime::decode(&bytes);
        let _ = split_message(&bytes);
    }

    #[test]
    fn a_cut_message_is_malformed(cut in 1usize..60) {
        let bytes = configure(vec![tier(), on(MediumKind::File, "/var/tmp")]).encode();
        let b = &bytes[4..];
        prop_assume!(cut < b.len());
        prop_assert_eq!(ToRuntime::decode(&b[..b.len() - cut]), Err(Malformed));
    }
}
