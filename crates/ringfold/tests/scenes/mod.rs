//! Tests between real processes: every rank is the test program again, started for its test
//! `a_rank`, and plays a scene.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfold::Communicator;

/// Time after which a rank counts as hung: far longer than any scene takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(300);

const SCENE: &str = "RINGFOLD_TEST_SCENE";

/// A rank's part in a test.
pub type Scene = fn(Communicator);

/// Plays the scene for which this process was started, if any.
pub fn act(scenes: &[(&str, Scene)]) {
    let Ok(name) = std::env::var(SCENE) else {
        return;
    };
    let (_, scene) = scenes
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a scene");
    scene(Communicator::init().expect("all ranks join"));
}

/// Plays a scene on `ranks` processes, all of which must succeed.
pub fn play(scene: &str, ranks: usize, transport: &str) {
    play_with(scene, ranks, &[("RINGFOLD_TRANSPORT", transport)]);
}

/// Like `play`, with these variables in the ranks' environment.
pub fn play_with(scene: &str, ranks: usize, variables: &[(&str, &str)]) {
    let name = u128::from_le_bytes(ringfold::internals::control::random().expect("random bytes"));
    let start = |rank: usize| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_rank", "--ignored", "--nocapture"])
            .env(SCENE, scene)
            .env("RINGFOLD_RANK", rank.to_string())
            .env("RINGFOLD_WORLD_SIZE", ranks.to_string())
            .env("RINGFOLD_ADDR", format!("unix:@ringfold-test-{name:x}"))
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process")
    };
    let mut children: Vec<_> = (0..ranks).map(start).collect();
    let deadline = Instant::now() + WATCHDOG;
    let mut failures = Vec::new();
    for (rank, child) in children.iter_mut().enumerate() {
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break Some(status);
            }
            if Instant::now() > deadline {
                child.kill().expect("a child of ours");
                child.wait().expect("a child");
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if status.is_none_or(|status| !status.success()) {
            let mut said = String::new();
            let stderr = child.stderr.as_mut().expect("piped");
            stderr.read_to_string(&mut said).expect("text");
            failures.push(format!("rank {rank} of {ranks}, {status:?}: {said}"));
        }
    }
    assert!(failures.is_empty(), "{scene}: {}", failures.join("\n"));
}
