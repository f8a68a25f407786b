//! Tests of faults, refusals and rules of calls, with ranks that are threads.

use super::*;

#[test]
fn dropping_a_communicator_ends_the_calls_under_way() {
    let results = on_all(2, |communicator| {
        if communicator.rank() == 1 {
            return communicator.barrier();
        }
        let mut data = [0.0f32; 8];
        let bytes = size_of_val(&data);
        // SAFETY: `data` outlives the work, which is dropped before it.
        let region = unsafe { Region::new(data.as_mut_ptr().cast(), bytes) };
        let mut request = Request::new(
            Collective::Recv,
            DType::F32,
            Counts::Even(8),
            Region::EMPTY,
            region,
        );
        request.target = crate::Target::Peer(1);
        // SAFETY: as above.
        let work = unsafe { communicator.start(request) }.expect("a receive without a send");
        communicator.abandon();
        work.wait()
    });
    for result in results {
        assert!(
            matches!(result, Err(Error::Aborted { rank: 0, .. })),
            "{result:?}"
        );
    }
}

#[test]
fn wrong_requests_are_refused_before_anything_moves() {
    let results = on_all(2, |communicator| {
        let mut data = [1.0f32; 8];
        let (input, output) = ([0f32; 4], &mut [0f32; 4]);
        let too_short = communicator.all_gather(&input, output).unwrap_err();
        let no_bits = communicator.all_reduce(&mut data, Op::Band).unwrap_err();
        let no_root = communicator.broadcast(&mut data, 2).unwrap_err();
        let usable = communicator.all_reduce(&mut data, Op::Sum);
        (too_short, no_bits, no_root, usable)
    });
    for (too_short, no_bits, no_root, usable) in results {
        for error in [too_short, no_bits, no_root] {
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
        usable.expect("the communicator is as good as before");
    }
}

#[test]
fn ranks_that_choose_differently_are_told_where_to_look() {
    let tree = "allreduce,0,-1,tree,simple,-1,-1,-1";
    let ring = "allreduce,0,-1,ring,simple,-1,-1,-1";
    let direct = "allreduce,0,-1,direct,simple,-1,-1,-1";
    let claim = "allreduce,0,-1,claim,simple,-1,-1,-1";
    for (one, other) in [(tree, ring), (ring, direct), (direct, claim)] {
        let mut communicators = Communicator::threads(2);
        for (communicator, rules) in communicators.iter_mut().zip([one, other]) {
            communicator.set_rules(Rules::parse(rules, "rules").expect("rules"));
        }
        let errors = on_each(communicators, |communicator| {
            let mut data = [1f32; 100];
            let first = communicator.all_reduce(&mut data, Op::Sum);
            // A rank that has published, or sent, and needs no answer learns of the error in the
            // next call.
            let second = first.and_then(|()| communicator.barrier());
            second.unwrap_err()
        });
        for error in errors {
            assert_eq!(error.class(), "Mismatch");
            assert!(error.to_string().contains("RINGFOLD_ALGO"), "{error}");
        }
    }
}

#[test]
fn a_slice_of_another_size_is_told() {
    let mut communicators = Communicator::threads(2);
    for communicator in &mut communicators {
        // Short slices have a cost, which may make another algorithm cheaper.
        communicator.policy.algorithm = Some(Method::Direct);
    }
    communicators[1].policy.tuning.slice_bytes = Some(1 << 10);
    let errors = on_each(communicators, |communicator| {
        let mut data = vec![1f32; 100_000];
        communicator.all_reduce(&mut data, Op::Sum).unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("another slice size"), "{error}");
    }
}

/// New rules apply from the next call on.
#[test]
fn rules_can_be_changed_between_calls() {
    let mut communicators = Communicator::threads(2);
    let names = ["ring", "tree", "direct"];
    let results = std::thread::scope(|scope| {
        let each = |communicator: &mut Communicator| {
            names.map(|name| {
                let rules = format!("allreduce,0,-1,{name},simple,-1,-1,-1");
                communicator.set_rules(Rules::parse(&rules, "rules").expect("rules"));
                let mut data = [1f32; 1000];
                communicator.all_reduce(&mut data, Op::Sum).expect("a sum");
                assert_eq!(data, [2.0; 1000]);
                let (counts, nothing) = (Counts::Even(1000), Region::EMPTY);
                let request =
                    Request::new(Collective::AllReduce, DType::F32, counts, nothing, nothing);
                let explanation = communicator.explain(&request).expect("a choice");
                assert_eq!(explanation.reason, Reason::Rule { line: 1 });
                let way = communicator.way(&request).expect("a way");
                assert_eq!(way.method(), explanation.way.method());
                way.method().name()
            })
        };
        let threads: Vec<_> = communicators
            .iter_mut()
            .map(|communicator| scope.spawn(move || each(communicator)))
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank"));
        joined.collect::<Vec<_>>()
    });
    assert_eq!(results, [names, names]);
}
