//! SPEC.md promises that every measuring command describes the fields of its JSON in `--help`.

use std::process::Command;

fn help(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    let output = command.args(words).arg("--help").output().expect("terrace runs");
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn every_measuring_command_describes_its_json() {
    let listed = help(&["bench"]);
    let list = listed.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let verbs: Vec<&str> = list
        .expect("a list of commands")
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert_eq!(verbs.len(), 8, "{verbs:?}");
    let benches = verbs.iter().map(|verb| vec!["bench", verb]);
    for words in benches.chain([vec!["demo"], vec!["sim"], vec!["tiers", "characterize"]]) {
        let text = help(&words);
        let json = text.split("JSON (--json").nth(1).unwrap_or_else(|| panic!("{words:?}: {text}"));
        assert!(
            json.split("Usage:").next().is_some_and(|fields| fields.contains('`')),
            "{words:?}"
        );
        assert!(text.lines().all(|line| line.len() <= 100), "{words:?}: wrapped for a terminal");
    }
}
