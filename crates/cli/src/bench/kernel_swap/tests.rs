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
    SwapSpec { dir: dir.into(), swap_bytes: 1 << 20, compressor: "lz4".into() }
}

#[test]
fn what_cannot_be_set_up_is_refused_before_anything_changes() {
    let root = fake_root("refuse");
    if effective_ids().0 != 0 {
        let error = KernelSwap::set_up_under(&root, &spec(&root)).err().unwrap().to_string();
        assert!(error.contains("needs root"), "{error}");
        return;
    }
    fs::write(root.join("proc/swaps"), "Filename\n/dev/sda2 partition 1 0 -2\n").unwrap();
    let error = KernelSwap::set_up_under(&root, &spec(&root)).err().unwrap().to_string();
    assert!(error.contains("swap is in use (/dev/sda2)"), "{error}");
    fs::remove_file(root.join("proc/swaps")).unwrap();
    let shm = Path::new("/dev/shm");
    if sys::is_memory_filesystem(shm).unwrap_or(false) {
        let error = KernelSwap::set_up_under(&root, &spec(shm)).err().unwrap().to_string();
        assert!(error.contains("is in memory"), "{error}");
    }
    let error = KernelSwap::set_up_under(&root, &spec(&root.join("no"))).err().unwrap();
    assert!(error.to_string().contains("is not a directory"), "{error}");
    fs::remove_file(root.join(ZSWAP).join("enabled")).unwrap();
    let error = KernelSwap::set_up_under(&root, &spec(&root)).err().unwrap().to_string();
    assert!(error.contains("has no zswap"), "{error}");
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
    let error = KernelSwap::set_up_under(&root, &spec(&root)).err().expect("must fail");
    assert!(error.to_string().contains("enabled cannot be read"), "{error}");
    let setting = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(setting("proc/sys/vm/page-cluster"), "3");
    assert_eq!(setting("sys/module/zswap/parameters/compressor"), "lzo");
    assert_eq!(setting("sys/module/zswap/parameters/max_pool_percent"), "20");
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

/// Changes the machine's swap settings, so it is not run unless asked for:
/// `cargo test -p terrace-cli zswap_is_measured -- --ignored --nocapture` as root.
#[test]
#[ignore = "turns zswap on for a few seconds; needs root and a machine that does not swap"]
fn zswap_is_measured_and_everything_is_put_back() {
    let settings = || {
        ["enabled", "compressor", "max_pool_percent"]
            .map(|n| fs::read_to_string(Path::new("/").join(ZSWAP).join(n)).unwrap())
    };
    let before = settings();
    let pages = 8_192;
    let spec = SwapSpec::for_pages(pages, "lzo");
    let figures = measure_zswap(&PageSource::from_machine().unwrap(), pages, &spec).unwrap();
    eprintln!("{figures:?}");
    assert!(figures.faults > pages * 9 / 10);
    assert!(figures.fault_p50_ns > 500 && figures.fault_p50_ns <= figures.fault_p99_ns);
    assert_eq!(settings(), before);
    assert_eq!(fs::read_to_string("/proc/swaps").unwrap().lines().count(), 1);
    let left = fs::read_dir(&spec.dir).unwrap().flatten().map(|e| e.path());
    assert_eq!(left.filter(|p| p.extension().is_some_and(|e| e == "swap")).count(), 0);
}
