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
    for command in [
        "perf", "run", "info", "schedule", "sim", "tune", "top", "trace", "metrics",
    ] {
        let done = finish(&[command, "--help"]);
        assert!(done.status.success());
        assert!(done.stdout.contains("Examples:"), "{command}");
        // Lines are wrapped also without a terminal.
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

#[test]
fn what_no_command_does_is_an_error_of_the_command_line() {
    for (arguments, word) in [
        (
            "schedule all_reduce --algorithm push --medium messages",
            "there are",
        ),
        ("schedule all_reduce --ranks 4 --hosts 9,9", "9,9"),
        ("sim --ranks 65 --gantt gantt.svg", "at most 64 ranks"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let done = finish(&arguments);
        assert_eq!(
            done.status.code(),
            Some(2),
            "{arguments:?}: {}",
            done.stderr
        );
        assert!(done.stderr.contains(word), "{arguments:?}: {}", done.stderr);
    }
}

const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/command.md"
);

#[test]
fn the_page_of_the_command_says_what_its_help_says() {
    assert_eq!(
        std::fs::read_to_string(PAGE).unwrap(),
        page(),
        "docs/reference/command.md is outdated; `cargo test -p ringfold-cli --test cli help:: -- \
         --ignored` regenerates it"
    );
}

#[test]
#[ignore = "writes docs/reference/command.md"]
fn write_the_page_of_the_command() {
    std::fs::write(PAGE, page()).unwrap();
}

/// Returns the text of `docs/reference/command.md`: the help of each command.
fn page() -> String {
    let mut text = String::from(
        "# The command\n\n\
         The help of `ringfold` and of each of its commands. This page is generated; a test \
         compares it\nwith what the command prints.\n",
    );
    let commands: [&[&str]; 14] = [
        &[],
        &["perf"],
        &["run"],
        &["info"],
        &["schedule"],
        &["sim"],
        &["tune"],
        &["tune", "calibrate"],
        &["tune", "sweep"],
        &["tune", "check"],
        &["tune", "optimize"],
        &["top"],
        &["trace"],
        &["metrics"],
    ];
    for command in commands {
        let done = finish(&[command, &["--help"]].concat());
        assert!(done.status.success(), "{command:?}: {}", done.stderr);
        let name = ["ringfold"]
            .iter()
            .chain(command)
            .copied()
            .collect::<Vec<_>>();
        text.push_str(&format!("\n## `{}`\n\n```text\n", name.join(" ")));
        for line in done.stdout.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push_str("```\n");
    }
    text
}
