//! The measurement: the same calls in the same order on every rank.
//!
//! For one size and placement, every rank writes data, and after barriers times the first call
//! separately. Warm-up calls follow, then the timed calls, each after an untimed barrier. Every
//! checked call has new data, and every rank compares its whole output. On devices, the copies
//! alone are timed next. Only then are the ranks' times gathered, by a collective too.

mod case;
mod data;
pub mod devices;
mod job;
pub mod measurement;
pub mod memory;
mod on_device;
pub mod placement;
mod span;
pub mod stats;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringfold::internals::random::SplitMix64;
use ringfold::{Collective, Communicator, LaneConfig, Request, Stats};

pub use case::{Case, Size};
pub use devices::{DeviceFlags, Devices};
pub use job::JobFlags;
pub use measurement::Measurement;
pub use span::SizeSpan;

use crate::statistics;
use data::Data;
use memory::{Memory, carry_out};
use on_device::OnDevice;
use placement::Placement;

/// A rank's process, as the table shows it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Participant {
    pub rank: usize,
    pub pid: u32,
    pub hostname: String,
}

/// The parameters of a measurement, the same on all ranks.
#[derive(Clone, Debug)]
pub struct BenchSettings {
    pub collective: Collective,
    /// Number of timed calls.
    pub iters: u32,
    /// Number of warm-up calls before the timed ones.
    pub warmup_iters: u32,
    /// Number of checked calls, each with new data.
    pub check: u32,
    /// Aggregation of the ranks' times: 0 rank 0's, 1 mean, 2 fastest, else slowest.
    pub average: u8,
    /// Whether a barrier precedes every timed call.
    pub has_barriers: bool,
    /// Whether the input is rewritten before every timed call.
    pub rewrite: bool,
    /// Whether the buffers are registered.
    pub is_registered: bool,
    /// Whether the lateness of calls is accumulated.
    pub stats: bool,
    /// The algorithm forced by the user.
    pub algorithm: Option<ringfold::Method>,
    pub timeout: Option<Duration>,
    /// The devices whose memory is used instead of the host's, and the settings of their lanes.
    pub devices: Option<(Devices, LaneConfig)>,
}

/// One rank's part in the measurement.
pub struct Bench<'a> {
    pub communicator: &'a mut Communicator,
    pub settings: BenchSettings,
    /// The first buffer, or on devices its mirror on the host; `second` likewise.
    first: Memory,
    second: Memory,
    /// Counter that makes every piece of data different. The same on all ranks.
    seed: u64,
    /// Lateness in the timed calls, if requested.
    stats: Stats,
    device: Option<OnDevice>,
}

impl<'a> Bench<'a> {
    /// Allocates buffers for sizes up to `max_bytes`.
    pub fn new(
        communicator: &'a mut Communicator,
        settings: BenchSettings,
        max_bytes: u64,
    ) -> Result<Bench<'a>> {
        let max_bytes = usize::try_from(max_bytes)?;
        let memory = || match settings.is_registered {
            false => Memory::new(max_bytes),
            true => Memory::registered(communicator, max_bytes),
        };
        let device = match &settings.devices {
            Some((devices, config)) => Some(OnDevice::new(
                communicator,
                devices,
                *config,
                settings.timeout,
                max_bytes,
            )?),
            None => None,
        };
        let [first, second] = match &device {
            Some(device) => device.mirrors(),
            None => [memory()?, memory()?],
        };
        Ok(Bench {
            first,
            second,
            communicator,
            settings,
            seed: 0,
            stats: Stats::default(),
            device,
        })
    }

    /// Closes the lane on the devices, if the measurement uses any; not the communicator.
    pub fn close(self) -> Result<()> {
        self.device.map_or(Ok(()), OnDevice::close)
    }

    /// Measures one size and placement. `None` if the collective has no such placement.
    pub fn measure(
        &mut self,
        case: Case,
        size: Size,
        in_place: bool,
    ) -> Result<Option<Measurement>> {
        let Some(placement) = self.placement(case, size, in_place) else {
            return Ok(None);
        };
        let request = self.request(&placement);
        let way = self.communicator.way(&request)?;

        self.write(&placement, size)?;
        // At the first barrier, ranks may be asleep that waited for the slowest writer; after the
        // second, all are awake.
        self.communicator.barrier()?;
        self.communicator.barrier()?;
        let first_us = self.timed(&request)?;
        for _ in 0..self.settings.warmup_iters {
            self.call(&request)?;
        }
        let times_us = match (&self.device, self.settings.has_barriers) {
            (Some(device), false) => self.timed_in_a_row(device, &request)?,
            _ => self.timed_calls(&placement, &request)?,
        };
        let mut wrong = 0;
        for _ in 0..self.settings.check {
            let data = self.write(&placement, size)?;
            self.call(&request)?;
            if let Some(device) = &self.device {
                device.download(size.bytes as usize)?;
            }
            wrong += placement.wrong(&data);
        }
        let by_devices = self.device.as_ref();
        let by_devices = by_devices.and_then(OnDevice::in_place_of_algorithm);
        let limit_us = self.limit_us(&request)?;

        let mut report = times_us;
        report.push(first_us);
        report.push(wrong as f64);
        let reports = self.gather_numbers(&report)?;
        let column = |index: usize| -> Vec<f64> { reports.iter().map(|r| r[index]).collect() };
        let iterations = self.settings.iters as usize;
        Ok(Some(Measurement {
            collective: self.settings.collective,
            world_size: self.communicator.world_size(),
            case,
            size,
            in_place,
            algorithm: by_devices.map_or_else(|| way.method().to_string(), str::to_owned),
            protocol: way.protocol().to_string(),
            transport: self.communicator.transport().to_owned(),
            first_us: self.unite(&column(iterations)),
            times_us: (0..iterations).map(|i| self.unite(&column(i))).collect(),
            wrong: (self.settings.check > 0)
                .then(|| column(iterations + 1).iter().sum::<f64>() as u64),
            has_barriers: self.settings.has_barriers,
            limit_us,
        }))
    }

    /// Writes new data, also to the device.
    fn write(&mut self, placement: &Placement, size: Size) -> Result<Data> {
        let data = placement.data(self.next_seed());
        placement.write(&data);
        if let Some(device) = &self.device {
            device.upload(size.bytes as usize)?;
        }
        Ok(data)
    }

    /// Times the calls one after the other.
    fn timed_calls(&mut self, placement: &Placement, request: &Request) -> Result<Vec<f64>> {
        let mut times_us = Vec::with_capacity(self.settings.iters as usize);
        for _ in 0..self.settings.iters {
            if self.settings.rewrite {
                placement.rewrite();
            }
            if self.settings.has_barriers {
                self.communicator.barrier()?;
            }
            if self.settings.stats {
                // Excludes the barrier's waits.
                self.communicator.reset_stats();
            }
            times_us.push(self.timed(request)?);
            if self.settings.stats {
                self.stats.merge(&self.communicator.stats());
            }
        }
        Ok(times_us)
    }

    /// Enqueues all calls and waits for them together; returns an equal share of the time for each.
    fn timed_in_a_row(&self, device: &OnDevice, request: &Request) -> Result<Vec<f64>> {
        let calls = self.settings.iters;
        self.communicator.barrier()?;
        let start = Instant::now();
        for _ in 1..calls {
            device.start(request)?;
        }
        device.wait(&device.start(request)?, calls)?;
        let total_us = start.elapsed().as_nanos() as f64 / 1e3;
        Ok(vec![total_us / f64::from(calls); calls as usize])
    }

    /// Returns the time of the copies alone, on all ranks at the same time: the median over
    /// iterations, or an equal share if calls are enqueued in a row. `None` without devices.
    fn limit_us(&self, request: &Request) -> Result<Option<f64>> {
        let Some(device) = &self.device else {
            return Ok(None);
        };
        let (times, calls) = match self.settings.has_barriers {
            true => (self.settings.iters, 1),
            false => (1, self.settings.iters),
        };
        let mut own = Vec::with_capacity(times as usize);
        for _ in 0..times {
            self.communicator.barrier()?;
            own.push(device.copies_us(request, calls)?);
        }
        let reports = self.gather_numbers(&own)?;
        let time = |index: usize| -> Vec<f64> { reports.iter().map(|r| r[index]).collect() };
        let united: Vec<f64> = (0..own.len())
            .map(|index| self.unite(&time(index)))
            .collect();
        Ok(Some(statistics::median(&united)))
    }

    /// Returns the request of [`measure`](Bench::measure). `None` if there is no such placement.
    pub fn request_of(&self, case: Case, size: Size, in_place: bool) -> Option<Request> {
        let placement = self.placement(case, size, in_place)?;
        Some(self.request(&placement))
    }

    fn placement(&self, case: Case, size: Size, in_place: bool) -> Option<Placement> {
        let bytes = size.bytes as usize;
        let place = (self.communicator.rank(), self.communicator.world_size());
        let memory = [self.first.region(bytes), self.second.region(bytes)];
        Placement::new(
            self.settings.collective,
            case,
            place,
            size,
            in_place,
            memory,
        )
    }

    fn request(&self, placement: &Placement) -> Request {
        let mut request = placement.request();
        request.options.algorithm = self.settings.algorithm;
        request.options.timeout = self.settings.timeout;
        request
    }

    /// Gathers the lateness in the timed calls, as each rank saw it, in rank order.
    pub fn gather_stats(&self) -> Result<Vec<Stats>> {
        let mut own = stats::encode(&self.stats);
        // Before the first measurement the statistics have no peers.
        own.resize(stats::numbers(self.communicator.world_size()), 0.0);
        let all = self.gather_numbers(&own)?;
        Ok(all.iter().map(|numbers| stats::decode(numbers)).collect())
    }

    /// Returns each rank's share of large all-reduces, if the shares are not all equal.
    pub fn weights(&self) -> Option<Vec<u32>> {
        self.communicator.weights()
    }

    /// Gathers the descriptions of the participating ranks, in rank order.
    pub fn introduce(&self) -> Result<Vec<Participant>> {
        let own = Participant {
            rank: self.communicator.rank(),
            pid: std::process::id(),
            hostname: hostname(),
        };
        let mut text = serde_json::to_vec(&own)?;
        let lengths = self.gather_numbers(&[text.len() as f64])?;
        let longest = lengths.iter().map(|length| length[0] as usize).max();
        // JSON ignores trailing spaces.
        text.resize(longest.unwrap_or(0), b' ');
        let mut all = vec![0; text.len() * self.communicator.world_size()];
        self.communicator.all_gather(&text, &mut all)?;
        let read = |text| serde_json::from_slice(text).context("a rank's description of itself");
        all.chunks(text.len()).map(read).collect()
    }

    fn next_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    /// Aggregates the ranks' times of one call.
    fn unite(&self, times: &[f64]) -> f64 {
        match self.settings.average {
            0 => times[0],
            1 => times.iter().sum::<f64>() / times.len() as f64,
            2 => times.iter().copied().fold(f64::INFINITY, f64::min),
            _ => times.iter().copied().fold(0.0, f64::max),
        }
    }

    fn call(&self, request: &Request) -> Result<()> {
        let owners = [&self.first, &self.second];
        match &self.device {
            Some(device) => device.wait(&device.start(request)?, 1),
            None => Ok(carry_out(&*self.communicator, request, &owners)?),
        }
    }

    fn timed(&self, request: &Request) -> Result<f64> {
        let start = Instant::now();
        self.call(request)?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    }

    /// Gathers every rank's numbers, equally many from each, in rank order.
    pub fn gather_numbers(&self, own: &[f64]) -> Result<Vec<Vec<f64>>> {
        let mut all = vec![0.0; own.len() * self.communicator.world_size()];
        self.communicator
            .all_gather(own, &mut all)
            .context("cannot gather the ranks' reports")?;
        Ok(all.chunks(own.len()).map(<[f64]>::to_vec).collect())
    }
}

/// Returns an order of `count` measurements that is drawn anew for each round, so that none always
/// follows the same other one, whose data may still be in the caches.
pub fn shuffled_order(count: usize, random: &mut SplitMix64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.index(last + 1));
    }
    order
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_measurement_always_follows_the_same_other_one() {
        for count in 3..20 {
            let mut random = SplitMix64(7);
            let orders: Vec<Vec<usize>> =
                (0..8).map(|_| shuffled_order(count, &mut random)).collect();
            for measurement in 0..count {
                let before = orders.iter().filter_map(|order| {
                    let at = order.iter().position(|one| *one == measurement);
                    let before = at.expect("every measurement has a turn").checked_sub(1)?;
                    Some(order[before])
                });
                let before: BTreeSet<usize> = before.collect();
                assert!(before.len() > 1, "{count}: {orders:?}");
            }
        }
    }
}
