//! Rules as operators write them, and malformed ones.

use super::parse::RULES_MAX;
use super::*;
use crate::random::SplitMix64;
use crate::tune::names::{ALGORITHMS, PROTOCOLS};

fn read(text: &str) -> Rules {
    Rules::parse(text, "tuned.csv").expect("rules")
}

fn refusal(text: &str) -> String {
    Rules::parse(text, "tuned.csv")
        .expect_err("a refusal")
        .to_string()
}

fn call(collective: Collective, bytes: u64, hosts: usize, ranks: usize) -> Question {
    Question {
        hosts,
        ..Question::new(collective, bytes, ranks)
    }
}

/// Returns the lines of the rules that match, in order.
fn lines(rules: &Rules, call: &Question) -> Vec<u32> {
    rules.find(call).map(|rule| rule.line).collect()
}

/// The kinds of lines that NCCL's example ships and explains, in words of our own.
const EXAMPLE: &str = "\
# collective,min,max,algorithm,protocol,channels,nodes,ranks,pipe ops,registered

# small: the tree; with 8 fields, 9 fields, 10 fields
allreduce,0,65536,tree,simple,2,1,-1
allreduce,65537,1048576,ring,simple,4,1,-1,-1
allreduce,1048577,4294967295,ring,ll128,-1,-1,-1,-1,-1
  broadcast , 0 ,\t32768,tree, simple , 1,-1 ,-1, 4 , 0
reduce,0,-1,ring,ll,-1,2,16,-1,1
allgather,0,18446744073709551615,nvls,simple,0,-1,-1
reducescatter,5,5,pat,simple,-1,-1,-1 # one size
allreduce,0,-1,collnet_direct,simple,-1,4,32
allreduce,0,-1,collnet_chain,simple,-1,4,32
allreduce,0,-1,nvls_tree,simple,-1,4,32\r
";

#[test]
fn every_kind_of_line_of_nccls_example_means_the_same() {
    let rules = read(EXAMPLE);
    assert_eq!(rules.len(), 10);
    let all: Vec<_> = rules.iter().collect();
    let [
        first,
        second,
        third,
        broadcast,
        reduce,
        all_gather,
        scatter,
        ..,
    ] = all[..]
    else {
        panic!("{all:?}");
    };
    assert_eq!((first.line, first.collective), (4, Collective::AllReduce));
    assert_eq!((first.bytes_min, first.bytes_max), (0, 65536));
    assert_eq!(first.way(), Some((Method::Tree, Protocol::Simple)));
    assert_eq!(
        (first.channels, first.hosts, first.ranks),
        (Some(2), Some(1), None)
    );
    assert_eq!((first.group, first.is_registered), (None, None));
    assert_eq!(second.nccl_way(), Some((1, 2)));
    assert_eq!(
        (third.way(), third.nccl_way(), third.channels),
        (None, Some((1, 1)), None)
    );
    assert_eq!(
        (broadcast.group, broadcast.is_registered),
        (Some(4), Some(false))
    );
    assert_eq!(
        (reduce.bytes_max, reduce.is_registered),
        (u64::MAX, Some(true))
    );
    assert_eq!(
        (all_gather.bytes_max, all_gather.channels),
        (u64::MAX, None)
    );
    assert_eq!((scatter.bytes_min, scatter.bytes_max), (5, 5));
    assert_eq!(all[9].nccl_way(), Some((5, 2)));
}

#[test]
fn ranges_are_inclusive_and_the_order_is_the_files() {
    let rules =
        read("allreduce,0,99,ring,simple,-1,-1,-1\nallreduce,99,100,tree,simple,-1,-1,-1\n");
    for (bytes, due) in [
        (0, &[1][..]),
        (98, &[1]),
        (99, &[1, 2]),
        (100, &[2]),
        (101, &[]),
    ] {
        assert_eq!(
            lines(&rules, &call(Collective::AllReduce, bytes, 1, 4)),
            due,
            "{bytes} B"
        );
    }
    assert_eq!(lines(&rules, &call(Collective::Reduce, 50, 1, 4)), []);
}

#[test]
fn every_field_narrows_and_minus_one_does_not() {
    let rules = read(
        "all_reduce,0,-1,direct,simple,-1,2,8,3,1\nall_reduce,0,-1,direct,ll,-1,-1,-1,-1,-1\n",
    );
    let narrow = Question {
        group: 3,
        is_registered: true,
        ..call(Collective::AllReduce, 7, 2, 8)
    };
    assert_eq!(lines(&rules, &narrow), [1, 2]);
    let others = [
        Question { hosts: 1, ..narrow },
        Question {
            world_size: 4,
            ..narrow
        },
        Question { group: 1, ..narrow },
        Question {
            is_registered: false,
            ..narrow
        },
    ];
    for other in others {
        assert_eq!(lines(&rules, &other), [2], "{other:?}");
    }
}

/// Malformed lines, and their error texts.
const BAD_LINES: &[(&str, &str)] = &[
    (
        "allreduce,0,9,rin,simple,-1,-1,-1",
        "2:15: `rin` is no algorithm; did you mean `ring`?",
    ),
    (
        "allreduce,0,9,Ring,simple,-1,-1,-1",
        "2:15: `Ring` is no algorithm; did you mean `ring`?",
    ),
    (
        "allredcue,0,9,ring,simple,-1,-1,-1",
        "2:1: `allredcue` is no collective; did you mean `allreduce`?",
    ),
    (
        "allreduce,0,9,ring,simpel,-1,-1,-1",
        "2:20: `simpel` is no protocol; did you mean `simple`?",
    ),
    (
        "allreduce,0,64K,ring,simple,-1,-1,-1",
        "2:13: `64K` is no bytes_max; write bytes",
    ),
    (
        "allreduce,-1,9,ring,simple,-1,-1,-1",
        "2:11: `-1` is no bytes_min",
    ),
    (
        "allreduce,10,9,ring,simple,-1,-1,-1",
        "2:14: `9` is below bytes_min, 10",
    ),
    (
        "allreduce,0,9,ring,simple,two,-1,-1",
        "2:27: `two` is no number of channels",
    ),
    (
        "allreduce,0,9,ring,simple,-2,-1,-1",
        "2:27: `-2` is no number of channels",
    ),
    (
        "allreduce,0,9,ring,simple,-1,0,-1",
        "2:30: `0` is no number of hosts",
    ),
    (
        "allreduce,0,9,ring,simple,-1,-1,x",
        "2:33: `x` is no number of ranks",
    ),
    (
        "allreduce,0,9,ring,simple,-1,-1,-1,0",
        "2:36: `0` is no number of calls made together",
    ),
    (
        "allreduce,0,9,ring,simple,-1,-1,-1,-1,2",
        "2:39: `2` is not 0 (not registered)",
    ),
    (
        "allreduce,0,,ring,simple,-1,-1,-1",
        "2:13: the bytes_max is empty",
    ),
    (
        "allreduce,0,9,ring,simple,-1,-1",
        "2:32: 7 fields, but a rule has 8 to 10; the first missing field is ranks",
    ),
    (
        "allreduce,0,9,ring,simple,-1,-1,-1,-1,-1,5",
        "2:42: `5` is one field too many",
    ),
    (
        "allreduce,0,9,ring,simple,-1,-1,-1,",
        "2:36: the group is empty",
    ),
    (
        "\u{e4}\u{f6},0,9,ring,simple,-1,-1,-1",
        "2:1: `\u{e4}\u{f6}` is no collective",
    ),
    (
        "  allreduce,0,9, ri\u{f1}g,simple,-1,-1,-1",
        "2:18: `ri\u{f1}g` is no algorithm",
    ),
    (
        "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks",
        "2:1: `collective_type` is a header",
    ),
    (
        "allreduce,99999999999999999999,-1,ring,simple,-1,-1,-1",
        "2:11: `99999999999999999999` is no bytes_min",
    ),
    ("allreduce", "2:10: 1 fields"),
];

#[test]
fn a_bad_line_is_told_with_line_and_column_and_what_would_do() {
    let good = "allreduce,0,65536,tree,simple,2,1,-1\n";
    for (line, due) in BAD_LINES {
        let text = refusal(&format!("{good}{line}\n{good}"));
        assert!(text.contains(&format!("tuned.csv:{due}")), "{line}\n{text}");
    }
}

#[test]
fn blank_lines_comments_and_foreign_line_ends_do_not_count() {
    let rules = read(
        "\u{feff}\r\n   \t\r\n\
         # all,of,this\r\n allreduce,0,9,ring,simple,-1,-1,-1 # why, though\r\n  # more",
    );
    let rule = rules.iter().next().expect("a rule");
    assert_eq!((rules.len(), rule.line, rule.ranks), (1, 4, None));
    assert!(read("").is_empty() && read("\n#\n").is_empty());
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let rules = read(EXAMPLE);
    let text = rules.to_string();
    assert_eq!(read(&text), rules);
    assert!(
        text.contains("broadcast,0,32768,tree,simple,1,-1,-1,4,0\n"),
        "{text}"
    );
}

#[test]
fn rules_that_never_hold_are_told() {
    let rules = read(
        "allreduce,0,100,ring,simple,-1,-1,-1\n\
         allreduce,10,20,ring,simple,-1,-1,8\n\
         allreduce,10,20,tree,simple,-1,-1,8\n\
         allreduce,0,100,nvls,simple,-1,-1,-1\n\
         reduce,0,100,ring,simple,-1,-1,-1\n\
         reduce,0,100,rabenseifner,simple,-1,-1,-1\n\
         allreduce,50,101,ring,simple,-1,-1,8\n\
         allreduce,0,-1,push,simple,-1,-1,-1\n",
    );
    let warnings = rules.warnings();
    let due = [
        "tuned.csv:2: `allreduce,10,20,ring,simple,-1,-1,8,-1,-1` never applies: line 1 ",
        "tuned.csv:3: `allreduce,10,20,tree,simple,-1,-1,8,-1,-1` applies only if the way of line \
         1, ",
        "tuned.csv:4: `allreduce,0,100,nvls,simple,-1,-1,-1,-1,-1` never applies: ringfold has no \
         all_reduce by nvls,simple",
        "tuned.csv:6: `reduce,0,100,rabenseifner,simple,-1,-1,-1,-1,-1` never applies: ringfold \
         has no reduce by rabenseifner",
        "tuned.csv:8: `allreduce,0,18446744073709551615,push,simple,",
    ];
    assert_eq!(warnings.len(), due.len(), "{warnings:#?}");
    for (warning, due) in warnings.iter().zip(due) {
        assert!(warning.starts_with(due), "{warning}");
    }
    let many = "allreduce,0,100,nvls,simple,-1,-1,-1\n".repeat(40);
    assert!(
        read(&many)
            .warnings()
            .last()
            .expect("warnings")
            .ends_with("24 more of this kind")
    );
}

#[test]
fn files_are_read_within_reason() {
    let path = std::env::temp_dir().join(format!("ringfold-rules-{}", std::process::id()));
    std::fs::write(&path, "allreduce,0,9,ring,simple,-1,-1,-1\n").unwrap();
    assert_eq!(Rules::read(&path).expect("rules").len(), 1);
    std::fs::write(&path, b"# \xff\n\xff\n").unwrap();
    let error = Rules::read(&path).expect_err("no text").to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains(":1: is not text"), "{error}");
    let error = Rules::read(&path).expect_err("no file").to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    let line = "allreduce,0,9,ring,simple,-1,-1,-1\n";
    assert!(
        refusal(&line.repeat(RULES_MAX + 1)).contains(&format!(":{}: more than", RULES_MAX + 1))
    );
}

#[test]
fn whatever_is_read_is_written_and_read_as_the_same() {
    let seed = 6;
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    for _ in 0..200 {
        let mut below = |limit: usize| random.index(limit);
        let collective = COLLECTIVES[below(COLLECTIVES.len())].text;
        let algorithm = ALGORITHMS[below(ALGORITHMS.len())].text;
        let protocol = PROTOCOLS[below(PROTOCOLS.len())].text;
        let mut number = || match below(3) {
            0 => "-1".to_owned(),
            _ => (1 + below(100)).to_string(),
        };
        let numbers = [number(), number(), number(), number()].join(" ,");
        let (least, more) = (below(1 << 40), below(1 << 40));
        let most = least + more;
        let text = format!("{collective},{least},{most},{algorithm},{protocol},{numbers}");
        let rules = read(&text);
        assert_eq!(read(&rules.to_string()), rules, "{text}");
    }
}
