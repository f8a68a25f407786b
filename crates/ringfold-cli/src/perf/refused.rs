//! Flags of nccl-tests without a meaning here, rejected with a reason unless they are set to their
//! neutral value.

const A_PROCESS: &str = "a rank is a process, or with `--threads` a thread; use `--ranks`";
const NO_HOST_TIME: &str =
    "a call ends when its data is complete, so the host has no separate time";
const NO_KERNEL: &str = "no kernel runs on a GPU";

/// The flags, all hidden from the help.
#[derive(clap::Args, Clone, Debug)]
pub struct Refused {
    #[arg(short = 't', long, hide = true, value_parser = only(1, A_PROCESS))]
    nthreads: Option<u64>,
    #[arg(short = 'g', long, hide = true, value_parser = only(1, A_PROCESS))]
    ngpus: Option<u64>,
    #[arg(short = 'm', long = "agg_iters", hide = true,
        value_parser = only(1, "calls are not grouped"))]
    agg_iters: Option<u64>,
    #[arg(short = 'p', long = "parallel_init", hide = true,
        value_parser = only(0, "every rank is a process that joins on its own"))]
    parallel_init: Option<u64>,
    #[arg(short = 'y', long = "stream_null", hide = true,
        value_parser = only(0, "calls have a stream of their own"))]
    stream_null: Option<u64>,
    #[arg(short = 'G', long, hide = true,
        value_parser = only(0, "there are no graphs to capture"))]
    cudagraph: Option<u64>,
    #[arg(short = 'C', long = "report_cputime", hide = true, value_parser = only(0, NO_HOST_TIME))]
    report_cputime: Option<u64>,
    #[arg(short = 'x', long = "cta_policy", hide = true, value_parser = only(0, NO_KERNEL))]
    cta_policy: Option<u64>,
    #[arg(short = 'D', long = "device_implementation", hide = true,
        value_parser = only(0, NO_KERNEL))]
    device_implementation: Option<u64>,
    #[arg(short = 'V', long = "device_cta_count", hide = true, value_parser = only(16, NO_KERNEL))]
    device_cta_count: Option<u64>,
    #[arg(short = 'M', long, hide = true, value_parser = only(0, "use `--device` for GPU memory"))]
    memory: Option<u64>,
    #[arg(short = 'u', long, hide = true,
        value_parser = only(0, "buffers are always aligned here"))]
    unalign: Option<u64>,
    #[arg(short = 'K', long = "per_iter_skip", hide = true,
        value_parser = only(0, "use `-w` for iterations that do not count"))]
    per_iter_skip: Option<u64>,
}

/// Returns a parser that accepts only the number `neutral`.
fn only(
    neutral: u64,
    why: &'static str,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse() {
        Ok(number) if number == neutral => Ok(number),
        _ => Err(format!("this flag of nccl-tests does not apply: {why}")),
    }
}
