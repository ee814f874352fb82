//! The set-up on a fake tree and, where the machine allows it, the real thing.

use super::*;

fn fake_root(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("terrace-swap-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    for (path, text) in [
        ("sys/module/zswap/parameters/enabled", "N\n"),
        ("sys/module/zswap/parameters/compressor", "lzo\n"),
        ("sys/module/zswap/parameters/max_pool_percent", "20\n"),
        ("proc/sys/vm/page-cluster", "3\n"),
        ("proc/swaps", "Filename Type Size Used Priority\n"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn spec(dir: &Path) -> SwapSpec {
    SwapSpec { dir: dir.into(), swap_bytes: 1 << 20 }
}

fn prepare(root: &Path, spec: &SwapSpec) -> Result<KernelSwap> {
    KernelSwap::prepare_under(root, spec, &[KernelTier::Zswap("lz4".into())])
}

#[test]
fn what_cannot_be_set_up_is_refused_before_anything_changes() {
    let root = fake_root("refuse");
    if effective_ids().0 != 0 {
        let error = prepare(&root, &spec(&root)).err().unwrap().to_string();
        assert!(error.contains("needs root"), "{error}");
        return;
    }
    fs::write(root.join("proc/swaps"), "Filename\n/dev/sda2 partition 1 0 -2\n").unwrap();
    let error = prepare(&root, &spec(&root)).err().unwrap().to_string();
    assert!(error.contains("swap is in use (/dev/sda2)"), "{error}");
    fs::remove_file(root.join("proc/swaps")).unwrap();
    let shm = Path::new("/dev/shm");
    if sys::is_memory_filesystem(shm).unwrap_or(false) {
        let error = prepare(&root, &spec(shm)).err().unwrap().to_string();
        assert!(error.contains("is in memory"), "{error}");
    }
    let error = prepare(&root, &spec(&root.join("no"))).err().unwrap();
    assert!(error.to_string().contains("is not a directory"), "{error}");
    fs::remove_dir_all(root).unwrap();
}

/// A step in the middle fails; every setting written before it must be as it was, and the swap
/// file gone.
#[test]
fn a_set_up_that_fails_half_way_is_taken_back() {
    if effective_ids().0 != 0 {
        return; // Refused before its first step, which the test above covers.
    }
    let root = fake_root("half");
    let enabled = root.join(ZSWAP).join("enabled");
    fs::remove_file(&enabled).unwrap();
    fs::create_dir(&enabled).unwrap();
    let swap = prepare(&root, &spec(&root)).unwrap();
    let setting = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(setting("proc/sys/vm/page-cluster"), "0");
    let never = || -> Result<()> { panic!("nothing is set up") };
    let error = swap.with(&KernelTier::Zswap("lz4".into()), never).unwrap_err();
    assert!(error.to_string().contains("enabled cannot be read"), "{error}");
    assert_eq!(setting("sys/module/zswap/parameters/compressor"), "lzo");
    assert_eq!(setting("sys/module/zswap/parameters/max_pool_percent"), "20");
    let error = swap.with(&KernelTier::Zram("lz4".into()), never).unwrap_err();
    assert!(error.to_string().contains("has no zram"), "{error}");
    swap.remove().unwrap();
    assert_eq!(setting("proc/sys/vm/page-cluster"), "3");
    let left = fs::read_dir(&root).unwrap().flatten();
    assert!(!left.map(|e| e.path()).any(|p| p.extension().is_some_and(|e| e == "swap")));
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn pages_are_distinct_and_not_trivial() {
    let source = PageSource::from_machine().unwrap();
    let (mut first, mut again) = ([0u8; PAGE_BYTES], [0u8; PAGE_BYTES]);
    source.fill(3, &mut first);
    source.fill(3 + source.pages(), &mut again);
    assert_ne!(first, again, "the stamp differs");
    assert_eq!(first[8..], again[8..], "the content repeats");
}

/// A zram device that takes everything but a disk size is reset and removed again.
#[test]
fn a_zram_device_that_cannot_be_used_is_removed() {
    if effective_ids().0 != 0 {
        return; // Refused before its first step.
    }
    let root = fake_root("zram");
    for path in ["sys/class/zram-control/hot_remove", "sys/block/zram7/reset"] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    fs::write(root.join("sys/class/zram-control/hot_add"), "7\n").unwrap();
    fs::create_dir(root.join("sys/block/zram7/disksize")).unwrap();
    let tier = KernelTier::Zram("lz4".into());
    let swap = KernelSwap::prepare_under(&root, &spec(&root), std::slice::from_ref(&tier)).unwrap();
    let error = swap.with(&tier, || Ok(())).unwrap_err();
    assert!(error.to_string().contains("disksize does not take"), "{error}");
    let file = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(file("sys/block/zram7/comp_algorithm"), "lz4");
    assert_eq!(file("sys/block/zram7/reset"), "1");
    assert_eq!(file("sys/class/zram-control/hot_remove"), "7");
    assert_eq!(file("sys/module/zswap/parameters/enabled"), "N");
    drop(swap);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn kernel_tiers_have_names() {
    assert_eq!(KernelTier::Zswap("lzo".into()).name(), "zswap+lzo");
    assert_eq!(KernelTier::Zram("lzo-rle".into()).name(), "zram+lzo-rle");
}

/// Changes the machine's swap settings, so it is not run unless asked for:
/// `cargo test -p terrace-cli kernel_swap_is_measured -- --ignored --nocapture` as root.
#[test]
#[ignore = "turns zswap on for a few seconds; needs root and a machine that does not swap"]
fn kernel_swap_is_measured_and_everything_is_put_back() {
    let settings = || {
        ["enabled", "compressor", "max_pool_percent"]
            .map(|n| fs::read_to_string(Path::new("/").join(ZSWAP).join(n)).unwrap())
    };
    let before = settings();
    let probe = ProbeSpec { pages: 8_192, ..ProbeSpec::default() };
    let spec = SwapSpec::for_pages(probe.pages);
    let source = PageSource::from_machine().unwrap();
    let tiers = [KernelTier::Zswap("lzo".into()), KernelTier::Zram("lz4".into())];
    let swap = KernelSwap::prepare(&spec, &tiers).unwrap();
    for tier in &tiers {
        let measure = || Ok(fault_probe(&probe, &source, Mapping::page_out)?);
        let figures = swap.with(tier, measure).unwrap();
        say!("{}: {figures:?}", tier.name());
        assert!(figures.faults > probe.pages * 9 / 10);
        assert!(figures.fault_ns_p50 > 500 && figures.fault_ns_p50 <= figures.fault_ns_p99);
        assert_eq!(figures.wrong_pages, 0);
        assert_eq!(settings(), before);
    }
    swap.remove().unwrap();
    assert_eq!(fs::read_to_string("/proc/swaps").unwrap().lines().count(), 1);
    let left = fs::read_dir(&spec.dir).unwrap().flatten().map(|e| e.path());
    assert_eq!(left.filter(|p| p.extension().is_some_and(|e| e == "swap")).count(), 0);
}
