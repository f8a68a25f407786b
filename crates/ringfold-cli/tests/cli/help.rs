//! Help and wrong command lines.

use crate::process::finish;

#[test]
fn help_names_the_commands_and_gives_examples() {
    let done = finish(&["--help"]);
    assert!(done.status.success());
    for word in [
        "perf",
        "run",
        "info",
        "schedule",
        "sim",
        "tune",
        "Examples:",
    ] {
        assert!(
            done.stdout.contains(word),
            "`{word}` is not in {}",
            done.stdout
        );
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in ["perf", "run", "info", "schedule", "sim", "tune"] {
        let done = finish(&[command, "--help"]);
        assert!(done.status.success());
        assert!(done.stdout.contains("Examples:"), "{command}");
        // Without a terminal, too.
        for line in done.stdout.lines() {
            assert!(line.chars().count() <= 120, "{command}: {line}");
        }
    }
}

#[test]
fn a_mistyped_flag_gets_a_suggestion() {
    let done = finish(&["run", "--rank", "2", "--", "true"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.contains("'--ranks'"), "{}", done.stderr);
}

#[test]
fn a_mistyped_command_gets_a_suggestion() {
    let done = finish(&["rum"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.contains("'run'"), "{}", done.stderr);
}
