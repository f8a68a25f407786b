//! Clients that must not join, while the job's own ranks must: garbage, silence, floods; and ranks
//! that never arrive.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::endings::{assert_all_good, script};
use crate::job::{Plan, WATCHDOG};
use crate::lab::{self, Lab};
use crate::random::Random;
use crate::script::Script;

/// Number of connections that a flood holds open: more than a listener accepts at once.
const FLOOD: usize = 300;

/// Number of calls by which a job shows that it works.
const CALLS: u64 = 20;

trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

/// Connects to the address of rank 0.
fn knock(address: &str) -> std::io::Result<Box<dyn Connection>> {
    if let Some(name) = address.strip_prefix("unix:@") {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        return Ok(Box::new(stream));
    }
    let address = address.to_socket_addrs()?.next().expect("an address");
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(Box::new(stream))
}

/// Attackers that run until they are stopped.
struct Attack {
    is_over: Arc<AtomicBool>,
    /// Each kind of attacker: its name, its number of connections to a listener, and its thread.
    knocks: Vec<(&'static str, Arc<AtomicU64>, JoinHandle<()>)>,
}

/// An attacker's use of a connection, until the attacker is stopped.
type Behaviour = fn(Box<dyn Connection>, &AtomicBool);

/// A function that starts a thread on some host.
type Spawn<'a> = &'a dyn Fn(Box<dyn FnOnce() + Send>) -> JoinHandle<()>;

impl Attack {
    fn begin(address: &str, spawn: Spawn<'_>) -> Attack {
        let mut attack = Attack {
            is_over: Arc::default(),
            knocks: Vec::new(),
        };
        let kinds: [(&'static str, Behaviour); 3] =
            [("garbage", garbage), ("slow", slow), ("answer", echo)];
        for (name, behave) in kinds {
            let address = address.to_string();
            attack.add(name, spawn, move |is_over, count| {
                while !is_over.load(Ordering::Relaxed) {
                    match knock(&address) {
                        Ok(connection) => {
                            count.fetch_add(1, Ordering::Relaxed);
                            behave(connection, is_over);
                        }
                        Err(_) => thread::yield_now(),
                    }
                }
            });
        }
        let address = address.to_string();
        attack.add("flood", spawn, move |is_over, count| {
            let mut held = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                match knock(&address) {
                    Ok(connection) if held.len() < FLOOD => {
                        count.fetch_add(1, Ordering::Relaxed);
                        held.push(connection);
                    }
                    _ => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        attack
    }

    /// Sends garbage to every TCP listener that appears on the host.
    fn on_all_listeners(spawn: Spawn<'_>) -> Attack {
        let mut attack = Attack {
            is_over: Arc::default(),
            knocks: Vec::new(),
        };
        attack.add("listeners", spawn, |is_over, count| {
            let mut held = Vec::new();
            let mut seen = HashSet::new();
            while !is_over.load(Ordering::Relaxed) {
                for address in listeners() {
                    let Ok(mut connection) = knock(&address) else {
                        continue;
                    };
                    let _ = connection.write_all(&[0xff; 300]);
                    // Some stay open and silent.
                    if let Ok(silent) = knock(&address) {
                        held.push(silent);
                    }
                    if seen.insert(address) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        attack
    }

    fn add(
        &mut self,
        name: &'static str,
        spawn: Spawn<'_>,
        work: impl FnOnce(&AtomicBool, &AtomicU64) + Send + 'static,
    ) {
        let (is_over, count) = (self.is_over.clone(), Arc::new(AtomicU64::new(0)));
        let counted = count.clone();
        let thread = spawn(Box::new(move || work(&is_over, &counted)));
        self.knocks.push((name, count, thread));
    }

    /// Waits until every kind of attacker has connected to a listener.
    fn await_all(&self) {
        for (name, count, thread) in &self.knocks {
            let deadline = Instant::now() + WATCHDOG;
            while count.load(Ordering::Relaxed) == 0 {
                assert!(
                    Instant::now() < deadline,
                    "the attacker `{name}` gets nowhere"
                );
                assert!(
                    !thread.is_finished(),
                    "the attacker `{name}` has fallen over"
                );
                thread::yield_now();
            }
        }
    }

    fn end(mut self) -> Vec<(&'static str, u64)> {
        self.is_over.store(true, Ordering::Relaxed);
        let knocks = self.knocks.drain(..).map(|(name, count, thread)| {
            thread.join().expect("an attacker does not panic");
            (name, count.load(Ordering::Relaxed))
        });
        knocks.collect()
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn garbage(mut connection: Box<dyn Connection>, _: &AtomicBool) {
    let mut random = Random::from_seed(7);
    let bytes: Vec<u8> = (0..64 << 10).map(|_| random.next() as u8).collect();
    let _ = connection.write_all(&bytes);
}

/// Sends a byte now and then, which could be the beginning of a message.
fn slow(mut connection: Box<dyn Connection>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) && connection.write_all(&[0]).is_ok() {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends bytes that a hello could have, then echoes all received bytes.
fn echo(mut connection: Box<dyn Connection>, is_over: &AtomicBool) {
    let _ = connection.write_all(&[b'r'; 4096]);
    let mut buffer = [0; 4096];
    while !is_over.load(Ordering::Relaxed) {
        match connection.read(&mut buffer) {
            Ok(count) if count > 0 && connection.write_all(&buffer[..count]).is_ok() => {}
            _ => return,
        }
    }
}

/// Returns all TCP listeners on this thread's host.
fn listeners() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default();
    let listening = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let (address, port) = local.split_once(':').filter(|_| state == "0A")?;
        let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(format!("{}:{port}", std::net::Ipv4Addr::from(address)))
    });
    listening.collect()
}

fn calls() -> Script {
    Script {
        iterations: CALLS,
        ..script("all_reduce", 4096)
    }
}

#[test]
fn strangers_at_the_door_do_not_keep_ranks_out() {
    let plan = Plan {
        secret: Some("for us".into()),
        ..Plan::new(3, "auto", calls())
    };
    let mut job = plan.empty();
    job.add(0, &plan.script);
    job.add(1, &plan.script);
    let attack = Attack::begin(&job.address, &|work| thread::spawn(work));
    attack.await_all();
    job.add(2, &plan.script);
    job.await_all("joined");
    println!("{:?}", attack.end());
    assert_all_good(&job.finish(), CALLS);
}

#[test]
fn strangers_on_the_network_do_not_keep_ranks_out() {
    let Some(lab) = Lab::new(2) else { return };
    let plan = lab.plan(3, "auto", calls());
    let mut job = plan.empty();
    lab.add(&mut job, 0, &plan.script);
    lab.add(&mut job, 1, &plan.script);
    let attack = Attack::begin(&lab::rendezvous(), &|work| lab.spawn(1, work));
    attack.await_all();
    lab.add(&mut job, 2, &plan.script);
    job.await_all("joined");
    println!("{:?}", attack.end());
    assert_all_good(&job.finish(), CALLS);
}

#[test]
fn strangers_at_the_listeners_for_data_do_not_keep_ranks_out() {
    let Some(lab) = Lab::new(2) else { return };
    // Host 0 has the rendezvous, too, so that at least one listener is found.
    let plan = lab.plan(4, "tcp", calls());
    let mut first = plan.empty();
    lab.add(&mut first, 0, &plan.script);
    let attacks = [0, 1].map(|host| Attack::on_all_listeners(&|work| lab.spawn(host, work)));
    attacks[0].await_all();
    for rank in 1..4 {
        lab.add(&mut first, rank, &plan.script);
    }
    assert_all_good(&first.finish(), CALLS);
    for _ in 0..3 {
        assert_all_good(&lab.start(&plan).finish(), CALLS);
    }
    println!("{:?}", attacks.map(Attack::end));
}

#[test]
fn ranks_that_do_not_come_are_named_at_the_deadline() {
    let connect_timeout = Duration::from_secs(1);
    let plan = Plan {
        connect_timeout,
        ..Plan::new(4, "auto", calls())
    };
    let mut job = plan.empty();
    job.add(0, &plan.script);
    job.add(2, &plan.script);
    for (rank, ending) in job.finish() {
        assert_eq!(ending.class, "Bootstrap", "rank {rank}: {ending:?}");
        assert!(ending.text.contains("[1, 3]"), "rank {rank}: {ending:?}");
    }
}

#[test]
fn a_rank_killed_while_the_others_come_is_named() {
    let mut random = Random::new("kill while joining");
    for victim in [1, 2, 1] {
        let connect_timeout = Duration::from_secs(3);
        let plan = Plan {
            connect_timeout,
            ..Plan::new(3, "auto", calls())
        };
        let mut job = plan.empty();
        for rank in [0, victim] {
            job.add(rank, &plan.script);
        }
        random.pause(Duration::from_millis(60));
        job.kill(victim);
        job.add(3 - victim, &plan.script);
        let survivors = job.finish();
        let first = &survivors[0].1;
        let names = [
            format!("rank {victim} "),
            format!("missing ranks: [{victim}]"),
        ];
        let is_named = names.iter().any(|name| first.text.contains(name));
        assert!(is_named, "rank 0 after rank {victim}'s death: {first:?}");
        // The other rank may have connected after rank 0 had given up.
        assert_ne!(survivors[1].1.class, "", "{survivors:?}");
    }
}
