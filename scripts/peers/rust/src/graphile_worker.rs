//! graphile_worker: the Rust rewrite of Graphile Worker, on the same schema.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};

use crate::{Load, Peer, key, pieces, ran};

#[derive(Serialize, Deserialize)]
struct Noop {
    n: u64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        ran(self.n);
        Ok::<(), String>(())
    }
}

#[derive(Clone)]
pub(crate) struct Graphile {
    url: String,
    utils: Arc<WorkerUtils>,
}

pub(crate) async fn open(url: &str) -> Result<Graphile> {
    let options = WorkerOptions::default().database_url(url).max_pg_conn(64).define_job::<Noop>();
    Ok(Graphile { url: url.to_owned(), utils: Arc::new(options.init().await?.create_utils()) })
}

fn spec(n: u64, keyed: bool) -> JobSpec {
    JobSpec { job_key: keyed.then(|| key(n)), ..JobSpec::default() }
}

impl Peer for Graphile {
    const NAME: &'static str = "graphile_worker";
    const VERSION: &'static str = "0.14.1";
    const SETTINGS: &'static str = "add_job with a job_key over a pool of 64; add_raw_jobs in pieces of 5,000. Worker for drain, \
        as in its own benches/perf_test.rs: concurrency 500, local queue of 5,000, complete_job_batch_delay 5 ms, poll_interval \
        5 ms; for latency: woken by NOTIFY, concurrency 8, no local queue.";

    async fn add(&self, n: u64) -> Result<()> {
        self.utils.add_job(Noop { n }, spec(n, true)).await?;
        Ok(())
    }

    async fn add_many(&self, tasks: u64, keyed: bool) -> Result<()> {
        for piece in pieces(tasks, 5_000) {
            let job = |n| {
                let payload = serde_json::json!({ "n": n });
                RawJobSpec { identifier: Noop::IDENTIFIER.into(), payload, spec: spec(n, keyed) }
            };
            self.utils.add_raw_jobs(&piece.map(job).collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// For load, the settings of its own benchmark (benches/perf_test.rs). A local queue only delays single jobs, so for
    /// latency there is none: the worker is woken by NOTIFY.
    async fn work(&self, load: Load) -> Result<()> {
        let options = WorkerOptions::default().database_url(&self.url).max_pg_conn(20).define_job::<Noop>();
        let options = options.complete_job_batch_delay(Duration::from_millis(5));
        let options = match load {
            Load::Drain => options
                .concurrency(500)
                .poll_interval(Duration::from_millis(5))
                .local_queue(LocalQueueConfig::default().with_size(5_000)),
            Load::Latency => options.concurrency(8),
        };
        let worker = options.init().await?;
        tokio::spawn(async move { worker.run().await.expect("the worker of graphile_worker runs") });
        Ok(())
    }

    fn find_unfinished(&self) -> &'static str {
        "SELECT 1 FROM graphile_worker._private_jobs LIMIT 1"
    }
}
