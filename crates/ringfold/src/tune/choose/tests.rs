//! The precedence of the settings in a choice.

use std::sync::Arc;

use crate::types::Assignment;

use super::*;
use crate::topology::Machine;
use crate::tune::model::tests::{on_one_host, two_cores};
use crate::tune::{AlgoFilter, Constants, Limits, Plugin, Rules};

const ALL_REDUCE: Collective = Collective::AllReduce;

fn tuning() -> Tuning {
    let machine: Machine = two_cores();
    Tuning::new(Constants::default(), Limits::derive(&machine, 2))
}

fn with_rules(text: &str) -> Tuning {
    Tuning {
        rules: Rules::parse(text, "rules").expect("rules"),
        ..tuning()
    }
}

fn with_allowed(algo: &str, proto: &str) -> Tuning {
    Tuning {
        allowed: AlgoFilter::parse(algo, proto).expect("lists"),
        ..tuning()
    }
}

/// Returns the choice for an all-reduce of `bytes` bytes between two ranks, and its reason.
fn of(bytes: u64, tuning: &Tuning) -> (Method, Protocol, Reason) {
    let question = on_one_host(ALL_REDUCE, bytes, 2);
    let explanation = explain(&question, tuning).expect("a choice");
    let choice = choose(&question, tuning).expect("a choice");
    assert_eq!(choice, explanation.way);
    (choice.method(), choice.protocol(), explanation.reason)
}

/// Makes one way cheap, tries to revive an unusable way, and requests channels.
#[derive(Debug)]
struct Opinion {
    cheap: (Method, Protocol),
    channels: i32,
}

impl Plugin for Opinion {
    fn name(&self) -> &str {
        "opinion"
    }

    fn adjust(&self, call: &Question, table: &mut CostTable, channels: &mut i32) {
        assert_eq!((call.collective, call.group), (ALL_REDUCE, 1));
        table.reprice(self.cheap, 0.0);
        table.reprice((Method::Stragglar, Protocol::Simple), 0.0);
        *channels = self.channels;
    }
}

fn with_plugin(algorithm: Method, channels: i32) -> Tuning {
    let cheap = (algorithm, Protocol::Simple);
    Tuning {
        plugin: Some(Arc::new(Opinion { cheap, channels })),
        ..tuning()
    }
}

#[test]
fn without_anybody_the_least_price_is_the_choice() {
    for bytes in [8, 4096, 1 << 20, 64 << 20] {
        let question = on_one_host(ALL_REDUCE, bytes, 2);
        let table = cost_table(&question, &tuning());
        let (algorithm, protocol, reason) = of(bytes, &tuning());
        assert_eq!(table.best(), Some((algorithm, protocol)));
        assert_eq!(reason, Reason::Model);
        assert!(table.usable().all(|(_, cost_us)| cost_us > 0.0));
    }
}

#[test]
fn the_first_rule_whose_way_is_usable_decides() {
    let tuning = with_rules(
        "allreduce,0,100,nvls,simple,-1,-1,-1\n\
         allreduce,0,100,push,zero_copy,-1,-1,-1\n\
         allreduce,0,100,tree,simple,-1,1,2\n\
         allreduce,0,100,ring,simple,-1,-1,-1\n",
    );
    // The first rule's way does not exist here; the second rule's needs registered memory.
    let (algorithm, protocol, reason) = of(100, &tuning);
    let expected = (Method::Tree, Protocol::Simple, Reason::Rule { line: 3 });
    assert_eq!((algorithm, protocol, reason), expected);
    assert_eq!(of(101, &tuning).2, Reason::Model);
    let registered = Question {
        is_registered: true,
        ..on_one_host(ALL_REDUCE, 100, 2)
    };
    let choice = choose(&registered, &tuning).expect("a choice");
    assert_eq!(choice.registered, Some(Assignment::Owner));
    assert_eq!(choice.method(), Method::Tree);
}

#[test]
fn a_rule_about_private_memory_holds_until_memory_shows_to_be_registered() {
    let tuning = with_rules("allreduce,0,-1,tree,simple,-1,-1,-1,-1,0\n");
    for bytes in [100, 1 << 20] {
        let may_be = Question {
            is_registered: true,
            ..on_one_host(ALL_REDUCE, bytes, 2)
        };
        let choice = choose(&may_be, &tuning).expect("a choice");
        assert_eq!(choice.method(), Method::Tree, "{bytes}");
    }
}

#[test]
fn the_setting_nearest_to_the_call_has_precedence() {
    let mut tuning = with_plugin(Method::Flat, 0);
    let plugin = Reason::Plugin("opinion".into());
    assert_eq!(
        of(1 << 20, &tuning),
        (Method::Flat, Protocol::Simple, plugin)
    );
    tuning.rules = with_rules("allreduce,0,-1,tree,simple,-1,-1,-1").rules;
    let rule = Reason::Rule { line: 1 };
    assert_eq!(of(1 << 20, &tuning), (Method::Tree, Protocol::Simple, rule));
    tuning.allowed = with_allowed("ring,rabenseifner", "").allowed;
    let (algorithm, _, reason) = of(1 << 20, &tuning);
    assert!(matches!(algorithm, Method::Ring | Method::Rabenseifner));
    assert_eq!(reason, Reason::Variable);
    let requested = Question {
        algorithm: Some(Method::Claim),
        ..on_one_host(ALL_REDUCE, 1 << 20, 2)
    };
    let explanation = explain(&requested, &tuning).expect("a choice");
    assert_eq!(explanation.way.method(), Method::Claim);
    assert_eq!(explanation.reason, Reason::Requested);
    assert_eq!(explanation.table.usable().count(), 1);
    assert!(explanation.prices.usable().count() > 5);
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let requested = Question {
        protocol: Some(Protocol::Ll),
        ..on_one_host(ALL_REDUCE, 1 << 20, 2)
    };
    let text = choose(&requested, &tuning()).unwrap_err().to_string();
    assert!(
        text.contains("by `ll` here") && text.contains("direct (simple)"),
        "{text}"
    );
    let question = on_one_host(ALL_REDUCE, 1 << 20, 2);
    let forced = with_allowed("allreduce:push", "");
    let text = choose(&question, &forced).unwrap_err().to_string();
    assert!(text.contains("RINGFOLD_ALGO"), "{text}");
}

#[test]
fn a_plugin_cannot_have_what_cannot_be() {
    let dear = with_plugin(Method::Stragglar, -7);
    assert_eq!(of(1 << 20, &dear), of(1 << 20, &tuning()));
}

#[test]
fn channels_are_whose_they_are_up_to_the_maximum() {
    let apart = |tuning: &Tuning| {
        let question = Question {
            slot_bytes: None,
            hosts: 2,
            ..on_one_host(ALL_REDUCE, 64 << 20, 2)
        };
        choose(&question, tuning).expect("a choice").channels
    };
    let bounded = |tuning| Tuning {
        channels_max: 4,
        ..tuning
    };
    let rule = |channels| with_rules(&format!("allreduce,0,-1,ring,simple,{channels},-1,-1"));
    assert!((1..=4).contains(&apart(&bounded(tuning()))));
    assert_eq!(apart(&bounded(rule(3))), 3);
    assert_eq!(apart(&bounded(rule(64))), 4);
    assert_eq!(apart(&bounded(with_plugin(Method::Ring, 3))), 3);
    assert_eq!(apart(&bounded(with_plugin(Method::Ring, 1))), 1);
    // A rule without a number of channels leaves the choice to the plugin.
    let both = Tuning {
        rules: rule(-1).rules,
        ..with_plugin(Method::Ring, 3)
    };
    assert_eq!(apart(&bounded(both)), 3);
}

#[test]
fn payloads_travel_in_announcements_only_where_they_fit() {
    let protocols = |bytes, is_uneven| {
        let question = Question {
            is_uneven,
            ..on_one_host(ALL_REDUCE, bytes, 2)
        };
        let table = cost_table(&question, &tuning());
        table.get((Method::OneShot, Protocol::Ll)).is_some()
    };
    assert!(protocols(8, false) && protocols(32, false));
    assert!(!protocols(33, false) && !protocols(8, true));
}

#[test]
fn weights_and_policies_leave_one_way() {
    let base = on_one_host(ALL_REDUCE, 1 << 20, 4);
    let weighted = Question {
        is_weighted: true,
        ..base
    };
    let around = Question {
        bypasses_stragglers: true,
        ..base
    };
    let rules = with_rules("allreduce,0,-1,claim,simple,-1,-1,-1");
    for (question, algorithm) in [(weighted, Method::Direct), (around, Method::Ring)] {
        let explanation = explain(&question, &rules).expect("a choice");
        let choice = explanation.way;
        assert_eq!(
            (choice.method(), choice.access),
            (algorithm, Access::Messages)
        );
        assert_eq!(explanation.reason, Reason::Policy);
        assert_eq!(explanation.prices.usable().count(), 1);
    }
}

#[test]
fn a_call_that_no_method_serves_is_refused_with_the_policy_that_rules_all_out() {
    let question = Question {
        bypasses_stragglers: true,
        ..Question::new(Collective::AllToAll, 4096, 4)
    };
    let refused = choose(&question, &tuning()).unwrap_err().to_string();
    assert!(
        refused.contains("slow ranks, which needs `ring`"),
        "{refused}"
    );
    assert!(!refused.contains("hosts"), "{refused}");
}

#[test]
fn what_others_exchange_does_not_go_by_an_agent_where_its_length_is_unknown() {
    let question = |is_uneven| Question {
        hosts: 2,
        is_uneven,
        algorithm: Some(Method::Hierarchical),
        ..Question::new(Collective::AllToAll, 4096, 4)
    };
    assert!(choose(&question(false), &tuning()).is_ok());
    let refused = choose(&question(true), &tuning()).unwrap_err();
    assert!(refused.to_string().contains("direct"), "{refused}");
}
