//! Tests that write boards and read them again, and that read hostile boards.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::*;
use crate::call::{PREPARED, Way};
use crate::types::{Access, Algorithm, Assignment, Collective, DType, Method};

const RANKS: usize = 3;

fn identity() -> Identity {
    Identity {
        job: 7,
        communicator: 9,
        rank: 2,
        world_size: RANKS,
        transport: "shm+tcp",
        program: "python3 train.py".into(),
    }
}

fn way() -> Way {
    Way {
        algorithm: Algorithm::Direct,
        access: Access::Registered,
        assignment: Assignment::Dynamic,
        is_inline: false,
        slice_bytes: 64,
        channels: 1,
        registered: None,
        reads: false,
        non_temporal_stores: false,
        is_weighted: false,
        is_reproducible: false,
    }
}

fn shown(collective: Collective, sequence: u64) -> Shown {
    Shown {
        kind: KindOfCall::pack(collective, DType::BF16, &way(), false),
        bytes: 100,
        sequence: PREPARED + sequence,
        root: Shown::root(Some(1)),
        tag: 0,
    }
}

/// A temporary folder of one test.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new(name: &str) -> TemporaryFolder {
        let name = format!("ringfold-board-{name}-{}", std::process::id());
        TemporaryFolder(std::env::temp_dir().join(name))
    }

    fn only_file(&self) -> Vec<u8> {
        let mut entries = std::fs::read_dir(&self.0).unwrap();
        let path = entries.next().expect("a file").unwrap().path();
        std::fs::read(path).unwrap()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns this process's board of the job.
fn own(job: u64) -> Option<Picture> {
    let found = find(Path::new("/"), true).into_iter();
    let mut own = found.filter(|found| found.pid == std::process::id());
    own.find_map(|found| found.picture.ok().filter(|picture| picture.job == job))
}

#[test]
fn a_board_is_found_and_says_what_was_shown_until_it_is_dropped() {
    let identity = Identity {
        job: 0x1234_5678_9abc,
        ..identity()
    };
    let board = Board::new(&identity).unwrap();
    board.show_begun(&shown(Collective::AllReduce, 5), PREPARED + 5);
    board.count(Collective::AllReduce as u8, 100);
    board.count(Collective::AllReduce as u8, 20);
    board.show_finished(PREPARED + 4);
    let known = PeerPicture {
        last: 3,
        short: 1,
        lateness_ns: 50,
        waited_ns: 60,
    };
    board.show_peer(1, &known);
    board.show_waits(70, 2, 4);
    board.show_waiting("#5 all_reduce, waiting for rank 1");
    let picture = own(identity.job).expect("the kernel lists it");
    assert_eq!((picture.begun, picture.finished), (5, 4));
    assert_eq!(picture.collectives, [(Collective::AllReduce, 2, 120)]);
    assert_eq!(
        picture.peers,
        [PeerPicture::default(), known, PeerPicture::default()]
    );
    assert_eq!((picture.waited_ns, picture.times_last), (70, 1));
    assert_eq!(
        picture.last.map(|(kind, _)| kind.method),
        Some(Method::Serve)
    );
    assert_eq!(
        (picture.rank, picture.world_size, picture.transport.as_str()),
        (2, 3, "shm+tcp")
    );
    let waiting = picture.waiting.expect("it waits");
    assert_eq!(waiting.text, "#5 all_reduce, waiting for rank 1");
    board.clear_waiting();
    board.show_fault("rank 1 \x1b[31mfailed\u{202e}");
    let picture = own(identity.job).unwrap();
    assert_eq!(picture.waiting, None);
    // A terminal must not obey the text.
    assert_eq!(picture.ended, Ended::Failed("rank 1 ?[31mfailed?".into()));
    drop(board);
    assert!(own(identity.job).is_none());
}

#[test]
fn the_last_calls_are_recorded_and_one_that_never_ended_says_so() {
    let folder = TemporaryFolder::new("records");
    let mut board = Board::recording(&identity(), 4, &folder.0).unwrap();
    let numbers: Vec<u64> = (1..=6)
        .map(|sequence| board.record(&shown(Collective::Broadcast, sequence)))
        .collect();
    // The fifth call's record has replaced the first one's.
    for number in &numbers[..5] {
        board.record_end(*number, None);
    }
    board.record_waits(numbers[4], 30, Some((0, 20)));
    board.close();
    drop(board);
    let bytes = folder.only_file();
    let picture = Picture::read(&bytes).unwrap();
    assert_eq!(picture.ended, Ended::Closed);
    let (calls, unread) = picture.calls(from(&bytes)).unwrap();
    let sequences: Vec<u64> = calls.iter().map(|call| call.sequence).collect();
    assert_eq!((sequences, unread), (vec![3, 4, 5, 6], 0));
    let ended: Vec<bool> = calls.iter().map(|call| call.end_ns.is_some()).collect();
    assert_eq!(ended, [true, true, true, false]);
    assert_eq!((calls[2].waited_ns, calls[2].late), (30, Some((0, 20))));
    assert_eq!((calls[3].late, calls[3].root), (None, Some(1)));
    assert_eq!(calls[0].kind.dtype, DType::BF16);
}

#[test]
fn a_file_of_records_is_private_and_never_an_existing_one() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TemporaryFolder::new("private");
    let _first = Board::recording(&identity(), 1, &folder.0).unwrap();
    let _second = Board::recording(&identity(), 1, &folder.0).unwrap();
    let files: Vec<_> = std::fs::read_dir(&folder.0).unwrap().flatten().collect();
    assert_eq!(files.len(), 2);
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn hostile_bytes_are_errors_or_numbers_and_never_panic() {
    let folder = TemporaryFolder::new("hostile");
    let mut board = Board::recording(&identity(), 2, &folder.0).unwrap();
    board.record(&shown(Collective::AllGather, 1));
    drop(board);
    let bytes = folder.only_file();
    let wrong = |index: usize, value: u64| {
        let mut changed = bytes.clone();
        changed[index * 8..index * 8 + 8].copy_from_slice(&value.to_ne_bytes());
        changed
    };
    for (index, value, says) in [
        (head::MAGIC, 0, "not a board"),
        (head::MAGIC, MAGIC + 1, "version 2"),
        (head::WORLD_SIZE, u64::MAX, "ranks"),
        (head::WORLD_SIZE, 1 << 16, "truncated"),
        (head::RECORDS, u64::MAX, "records"),
        (head::RANK, 3, "rank 3 among 3"),
    ] {
        let error = Picture::read(&wrong(index, value)).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let whole = |bytes: &[u8]| {
        let picture = Picture::read(bytes)?;
        match bytes.len() < picture.whole_bytes() {
            true => Err("truncated".into()),
            false => picture.calls(from(bytes)),
        }
    };
    for length in 0..bytes.len() {
        assert!(whole(&bytes[..length]).is_err(), "{length} bytes");
    }
    let error = whole(&wrong(head::RECORDS, 1000)).unwrap_err();
    assert!(error.contains("truncated"), "{error}");
    // No number in any word causes a panic.
    for index in 0..bytes.len() / 8 {
        for value in [0, 1, u64::MAX, 1 << 63] {
            let _ = whole(&wrong(index, value));
        }
    }
    let (calls, unread) = whole(&wrong(now::RECORDED, u64::MAX)).unwrap();
    assert_eq!((calls.len(), unread), (1, 1));
}

/// Returns a reader of a board in memory.
fn from(board: &[u8]) -> impl FnMut(usize, &mut [u8]) -> Result<(), String> {
    |place, into| {
        let bytes = board.get(place..place + into.len()).ok_or("cut off")?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

/// Makes a folder that looks like the parent of `/proc` to [`find`]. A process has a user, an ID,
/// and a number of descriptors; each descriptor is another file with the same board.
fn proc_with(folder: &Path, processes: &[(u32, u32, usize)]) {
    for (user, pid, boards) in processes {
        let process = folder.join(format!("proc/{pid}"));
        std::fs::create_dir_all(process.join("fd")).unwrap();
        let status = format!("Uid:\t{user}\t0\t0\t0\nNSpid:\t9\t{pid}\n");
        std::fs::write(process.join("status"), status).unwrap();
        for number in 0..*boards {
            let file = folder.join(format!("{pid}-{number}{FILE_SUFFIX}"));
            let words = layout::words(RANKS_CLAIMED, 0);
            let mut head = vec![0; layout::BEGINNING_BYTES];
            for (index, value) in [
                (head::MAGIC, MAGIC),
                (head::PID, u64::from(*pid)),
                (head::WORLD_SIZE, RANKS_CLAIMED as u64),
            ] {
                head[index * 8..index * 8 + 8].copy_from_slice(&value.to_ne_bytes());
            }
            std::fs::write(&file, head).unwrap();
            let sparse = File::options().write(true).open(&file).unwrap();
            sparse.set_len(words as u64 * 8).unwrap();
            std::os::unix::fs::symlink(&file, process.join(format!("fd/{number}"))).unwrap();
        }
    }
}

/// Number of ranks of a board of 4 MiB.
const RANKS_CLAIMED: usize = 1 << 17;

#[test]
fn a_user_with_too_many_boards_hides_its_own_and_no_others() {
    let folder = TemporaryFolder::new("flood");
    proc_with(
        &folder.0,
        &[(70, 300, 33), (70, 301, 33), (70, 302, 1), (71, 200, 1)],
    );
    let found = find(&folder.0, false);
    let good = |pid| {
        let of = found.iter().filter(|found| found.pid == pid);
        of.filter(|found| found.picture.is_ok()).count()
    };
    assert_eq!((good(300), good(302), good(200)), (33, 0, 1));
    assert!(good(301) < 33);
    let said: Vec<_> = found
        .iter()
        .filter_map(|found| Some((found.pid, found.picture.as_ref().err()?)))
        .collect();
    assert!(
        matches!(said[..], [(301, why)] if why.contains("user 70 exceeds")),
        "{said:?}"
    );
    // Peers count against the budget if they are kept.
    assert!(find(&folder.0, true).len() < found.len());
    let peers = found
        .iter()
        .filter_map(|found| found.picture.as_ref().ok())
        .map(|picture| picture.peers.len());
    assert_eq!(peers.sum::<usize>(), 0);
}

#[test]
fn a_board_without_its_memory_is_not_read() {
    let board = make_sealed(MEMFD_NAME, layout::words(RANKS_CLAIMED, 0) * 8).unwrap();
    let mut file = File::from(board);
    for value in [
        MAGIC,
        u64::from(std::process::id()),
        77,
        0,
        0,
        RANKS_CLAIMED as u64,
        0,
    ] {
        file.write_all(&value.to_ne_bytes()).unwrap();
    }
    let found = find(Path::new("/"), false);
    let own = found.iter().filter(|found| found.pid == std::process::id());
    let mut own = own.filter_map(|found| found.picture.as_ref().err());
    assert!(
        own.any(|why| why.contains("memory is not fully allocated")),
        "{found:?}"
    );
}
