//! Flags of nccl-tests without a meaning here, rejected with a reason unless they are set to their
//! neutral value.

/// Flags of nccl-tests, all hidden from the help.
#[derive(clap::Args, Clone, Debug)]
pub struct Refused {
    #[arg(short = 't', long, hide = true)]
    nthreads: Option<u64>,
    #[arg(short = 'g', long, hide = true)]
    ngpus: Option<u64>,
    #[arg(short = 'm', long = "agg_iters", hide = true)]
    agg_iters: Option<u64>,
    #[arg(short = 'p', long = "parallel_init", hide = true)]
    parallel_init: Option<u64>,
    #[arg(short = 'y', long = "stream_null", hide = true)]
    stream_null: Option<u64>,
    #[arg(short = 'G', long, hide = true)]
    cudagraph: Option<u64>,
    #[arg(short = 'C', long = "report_cputime", hide = true)]
    report_cputime: Option<u64>,
    #[arg(short = 'x', long = "cta_policy", hide = true)]
    cta_policy: Option<u64>,
    #[arg(short = 'D', long = "device_implementation", hide = true)]
    device_implementation: Option<u64>,
    #[arg(short = 'V', long = "device_cta_count", hide = true)]
    device_cta_count: Option<u64>,
    #[arg(short = 'M', long, hide = true)]
    memory: Option<u64>,
    #[arg(short = 'u', long, hide = true)]
    unalign: Option<u64>,
    #[arg(short = 'K', long = "per_iter_skip", hide = true)]
    per_iter_skip: Option<u64>,
}

impl Refused {
    /// Rejects every flag that is not set to its neutral value.
    #[rustfmt::skip]
    pub fn check(&self) -> anyhow::Result<()> {
        let flags = [
            ("-t", self.nthreads, 1, "a rank is a process; use `--ranks`"),
            ("-g", self.ngpus, 1, "a rank is a process; use `--ranks`"),
            ("-m", self.agg_iters, 1, "calls are not grouped"),
            ("-p", self.parallel_init, 0, "every rank is a process that joins on its own"),
            ("-y", self.stream_null, 0, "calls have a stream of their own"),
            ("-G", self.cudagraph, 0, "there are no graphs to capture"),
            ("-C", self.report_cputime, 0, "a call ends when its data is complete, so the host has \
                no separate time"),
            ("-x", self.cta_policy, 0, "no kernel runs on a GPU"),
            ("-D", self.device_implementation, 0, "no kernel runs on a GPU"),
            ("-V", self.device_cta_count, 16, "no kernel runs on a GPU"),
            ("-M", self.memory, 0, "use `--device` for GPU memory"),
            ("-u", self.unalign, 0, "buffers are always aligned here"),
            ("-K", self.per_iter_skip, 0, "use `-w` for iterations that do not count"),
        ];
        for (flag, value, neutral, why) in flags {
            if let Some(value) = value.filter(|&value| value != neutral) {
                anyhow::bail!("`{flag} {value}` of nccl-tests does not apply: {why}");
            }
        }
        Ok(())
    }
}
