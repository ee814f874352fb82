use super::*;

#[test]
fn options_override_the_preset() {
    let args = ConfigArgs {
        preset: Some(Preset::Tierscape),
        policy: Some(PolicyKind::Waterfall),
        threshold: Some("aggressive".into()),
        window: Some(3.0),
        move_threads: Some(2),
        move_mib_s: Some(9),
        ..ConfigArgs::default()
    };
    let config = args.resolve().unwrap();
    assert_eq!((config.preset.as_str(), config.tiers.len()), ("tierscape", 5));
    assert_eq!(config.policy.kind, PolicyKind::Waterfall);
    assert_eq!(config.policy.threshold.share(), Some(0.75));
    assert_eq!((config.run.window_s, config.run.move_threads), (3.0, 2));
    assert!(config.is_emulated());
}

#[test]
fn torture_changes_everything_but_the_tiers() {
    let mut config = Config::from_preset(Preset::Tierscape);
    let tiers = config.tiers.clone();
    config.torture(0);
    assert_eq!((config.run.torture_seed, config.run.window_s), (1, 0.1));
    assert_eq!((config.run.cooling_windows, config.run.move_mib_s), (1, 0));
    assert_eq!((config.run.move_threads, config.tiers), (2, tiers));
    config.run.move_threads = 5;
    config.run.torture_seed = 0;
    let mut config = Config { tiers: Vec::new(), ..config };
    config.torture(9);
    assert_eq!((config.run.torture_seed, config.run.move_threads), (9, 5));
}

#[test]
fn saved_tiers_are_for_auto_only() {
    let tiers = Preset::Auto.tiers().split_off(2);
    let found = || {
        let (path, date) = (PathBuf::from("auto.toml"), "today".to_owned());
        Saved::Tiers(saved::SavedTiers { tiers: tiers.clone(), path, date })
    };
    let resolve = |preset, saved: &dyn Fn() -> Saved| {
        ConfigArgs { preset, ..ConfigArgs::default() }.resolve_with(saved).unwrap()
    };
    for preset in [None, Some(Preset::Auto)] {
        let config = resolve(preset, &found);
        assert_eq!((config.preset.as_str(), &config.tiers), ("auto", &tiers));
        assert!(config.tiers_note.unwrap().contains("auto.toml"));
    }
    assert_eq!(resolve(Some(Preset::Tierscape), &found).tiers, Preset::Tierscape.tiers());
    assert_eq!(resolve(None, &|| Saved::None), Config::from_preset(Preset::Auto));
    let ignored = resolve(None, &|| Saved::Ignored("old".into()));
    assert_eq!(ignored.tiers, Preset::Auto.tiers());
    assert_eq!(ignored.tiers_note.as_deref(), Some("auto: old"));
}

#[test]
fn an_option_out_of_range_is_named() {
    let args = ConfigArgs { alpha: Some(-0.5), ..ConfigArgs::default() };
    assert!(args.resolve().unwrap_err().to_string().starts_with("--alpha: -0.5 is out of"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(Path::new("/nowhere/t.toml")).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/t.toml: cannot be read: "), "{error}");
}

#[test]
fn a_slowdown_chooses_its_policy_unless_another_is_named() {
    let args = |policy, text: &str| ConfigArgs {
        policy,
        max_slowdown: Some(text.into()),
        ..ConfigArgs::default()
    };
    let policy = args(None, "2.5%").resolve().unwrap().policy;
    assert_eq!((policy.kind, policy.max_slowdown), (PolicyKind::Slowdown, 0.025));
    let policy = args(Some(PolicyKind::None), "7").resolve().unwrap().policy;
    assert_eq!((policy.kind, policy.max_slowdown), (PolicyKind::None, 0.07));
    let same = args(Some(PolicyKind::Slowdown), "3%").resolve().unwrap().policy;
    assert_eq!((same.kind, same.max_slowdown), (PolicyKind::Slowdown, 0.03));
    // Another policy would not keep the promise that was asked for.
    for kind in PolicyKind::ALL {
        if matches!(kind, PolicyKind::None | PolicyKind::Slowdown) {
            continue;
        }
        let error = args(Some(kind), "5%").resolve().unwrap_err().to_string();
        let says = format!("--policy says {}", kind.name());
        assert!(error.starts_with("--max-slowdown: ") && error.contains(&says), "{error}");
    }
    for wrong in ["much", "-1%", "2000%", "NaN"] {
        let error = args(None, wrong).resolve().unwrap_err().to_string();
        assert!(error.starts_with("--max-slowdown: "), "{error}");
    }
}

#[test]
fn without_a_word_a_slowdown_is_kept_and_an_alpha_chooses_its_policy() {
    let policy = ConfigArgs::default().resolve().unwrap().policy;
    assert_eq!((policy.kind, policy.max_slowdown), (PolicyKind::Slowdown, 0.05));
    let args = |policy| ConfigArgs { policy, alpha: Some(0.2), ..ConfigArgs::default() };
    let policy = args(None).resolve().unwrap().policy;
    assert_eq!((policy.kind, policy.alpha), (PolicyKind::Analytical, 0.2));
    let off = args(Some(PolicyKind::None)).resolve().unwrap().policy;
    assert_eq!(off.kind, PolicyKind::None);
}

#[test]
fn a_knob_without_a_use_is_refused() {
    let cold_age = ColdAgeArgs { promotion_rate: Some("0.2%".into()), ..ColdAgeArgs::default() };
    let threshold = || ConfigArgs { threshold: Some("75%".into()), ..ConfigArgs::default() };
    let two_tier = || ConfigArgs { two_tier: Some(2), ..ConfigArgs::default() };
    let rate = || ConfigArgs { cold_age: cold_age.clone(), ..ConfigArgs::default() };
    let alpha = || ConfigArgs { alpha: Some(0.1), ..ConfigArgs::default() };
    let named = |policy, args: ConfigArgs| ConfigArgs { policy: Some(policy), ..args };
    let why = |args: ConfigArgs| args.resolve().unwrap_err().to_string();
    assert_eq!(
        why(threshold()),
        "--threshold: it is a knob of the policies waterfall and two-tier, and the one in \
         force is slowdown; add --policy waterfall, or leave --threshold out"
    );
    assert_eq!(
        why(named(PolicyKind::Waterfall, alpha())),
        "--alpha: it is a knob of the policy analytical, and --policy says waterfall; say \
         --policy analytical instead, or leave --alpha out"
    );
    assert_eq!(
        why(ConfigArgs { two_tier: Some(2), ..alpha() }),
        "--two-tier: it is a knob of the policy two-tier, and --alpha chooses analytical; \
         say --policy two-tier instead of --alpha, or leave --two-tier out"
    );
    for policy in PolicyKind::ALL.into_iter().chain([PolicyKind::KernelTwoTier]) {
        use PolicyKind::{ColdAge, KernelTwoTier, None, TwoTier, Waterfall};
        let is_fine = |args| named(policy, args).resolve().is_ok();
        let takes_threshold = matches!(policy, Waterfall | TwoTier | KernelTwoTier | None);
        assert_eq!(is_fine(threshold()), takes_threshold, "{policy:?}");
        assert_eq!(is_fine(two_tier()), matches!(policy, TwoTier | None), "{policy:?}");
        assert_eq!(is_fine(rate()), matches!(policy, ColdAge | None), "{policy:?}");
    }
}

#[test]
fn a_file_may_have_knobs_of_several_policies_and_what_clashes_has_its_place() {
    let folder = std::env::temp_dir().join(format!("terrace-knobs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("t.toml");
    let text = "[policy]\nkind = \"slowdown\"\nalpha = 0.1\nthreshold = \"30%\"\n\
                two_tier = 5\n[cold_age]\nminute_s = 1\n";
    std::fs::write(&path, text).unwrap();
    let with = |policy| ConfigArgs {
        config: Some(path.clone()),
        policy: Some(policy),
        ..ConfigArgs::default()
    };
    let policy = with(PolicyKind::Waterfall).resolve().unwrap().policy;
    assert_eq!((policy.alpha, policy.threshold), (0.1, Threshold::Share(0.3)));
    let why = |args: ConfigArgs| args.resolve().unwrap_err().to_string();
    let at = |line, rest: &str| format!("{}:{line}: {rest}", path.display());
    let tier = at(5, "policy.two_tier: there is no tier 5; use 1 to ");
    let minute = at(7, "cold_age.minute_s: a minute of 1 s is shorter than the window of 5 s;");
    let said = [why(with(PolicyKind::TwoTier)), why(with(PolicyKind::ColdAge))];
    assert!(said[0].starts_with(&tier) && said[1].starts_with(&minute), "{said:?}");
    // The command line has the last word, and the blame if it is wrong.
    let shorter = ConfigArgs { window: Some(0.5), ..with(PolicyKind::ColdAge) };
    assert_eq!(shorter.resolve().unwrap().policy.cold_age.minute_s, 1.0);
    let longer = ConfigArgs { window: Some(9.0), ..with(PolicyKind::ColdAge) };
    assert!(why(longer).starts_with("--window: a minute of 1 s is shorter"));
    let preset = Some(Preset::Tierscape);
    let five = ConfigArgs { preset, ..with(PolicyKind::TwoTier) };
    assert_eq!(five.resolve().unwrap().policy.two_tier, 5);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_amount_of_money_chooses_the_policy_that_keeps_it() {
    let args = |policy, text: &str| ConfigArgs {
        policy,
        budget_money: Some(text.into()),
        preset: Some(Preset::Tierscape),
        ..ConfigArgs::default()
    };
    for (text, money) in [("12.5", Money::Usd(12.5)), ("60%", Money::Share(0.6))] {
        for kind in [None, Some(PolicyKind::Analytical)] {
            let policy = args(kind, text).resolve().unwrap().policy;
            assert_eq!((policy.kind, policy.money), (PolicyKind::Analytical, Some(money)));
        }
    }
    // To switch it off is no contradiction; to ask for another policy is.
    let off = args(Some(PolicyKind::None), "1").resolve().unwrap();
    assert_eq!(off.policy.kind, PolicyKind::None);
    let error = args(Some(PolicyKind::Waterfall), "1").resolve().unwrap_err().to_string();
    assert!(error.contains("--policy says waterfall"), "{error}");
    for wrong in ["much", "-1", "120%", "NaN", "-3%", "%"] {
        let error = args(None, wrong).resolve().unwrap_err().to_string();
        assert!(error.starts_with("--budget-money: "), "{error}");
    }
}

#[test]
fn a_limited_medium_limits_its_tiers_together() {
    let mut config = Config::from_preset(Preset::Tierscape);
    assert!(config.limits().is_empty());
    let slow = config.tiers.last().unwrap().medium.name.clone();
    let medium = config.media.iter_mut().find(|m| m.name == slow).unwrap();
    medium.place.capacity_bytes = 1 << 30;
    let limits = config.limits();
    assert_eq!((limits.len(), limits[0].bytes()), (1, f64::from(1 << 30)));
    for (index, tier) in config.tiers.iter().enumerate() {
        assert_eq!(limits[0].counts(index + 1), tier.medium.name == slow);
    }
    assert!(!limits[0].counts(0));
}

#[test]
fn thresholds_print_as_they_are_read() {
    for text in ["conservative", "moderate", "aggressive", "45%", "7%", "12"] {
        assert_eq!(Threshold::parse(text).unwrap().to_string(), text);
    }
}
