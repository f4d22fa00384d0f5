//! What `call()` costs when the first try succeeds, beside the plain call and beside backon: the price of being ready.
//!
//! ```sh
//! cargo bench -p redrive --bench call
//! ```

use std::hint::black_box;

use backon::Retryable as _;
use criterion::{Criterion, criterion_group, criterion_main};
use redrive::{Engine, Store, retryable};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
    lines: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("declined")]
struct Declined;

async fn plain(order: &Order) -> Result<u64, Declined> {
    if black_box(order).id == 0 { Err(Declined) } else { Ok(order.id + 1) }
}

#[retryable]
async fn durable(order: &Order) -> Result<u64, Declined> {
    plain(order).await
}

#[retryable(persist = never)]
async fn in_memory(order: &Order) -> Result<u64, Declined> {
    plain(order).await
}

fn inline(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let redrive = runtime.block_on(async {
        let store = Store::open("sqlite::memory:").await.unwrap();
        Engine::builder(store).start().await.unwrap()
    });
    let order = Order { id: 7, lines: vec!["a book".into(); 10] };
    let mut group = c.benchmark_group("inline");
    group.bench_function("plain", |b| b.to_async(&runtime).iter(|| plain(&order)));
    group.bench_function("backon", |b| {
        let policy = backon::ExponentialBuilder::default();
        b.to_async(&runtime).iter(|| (|| plain(&order)).retry(policy));
    });
    group.bench_function("never", |b| b.to_async(&runtime).iter(|| redrive.call(in_memory(&order))));
    group.bench_function("retry_only", |b| b.to_async(&runtime).iter(|| redrive.call(durable(&order))));
    group.finish();
    runtime.block_on(redrive.stop());
    assert_eq!(order.lines.len(), 10);
}

criterion_group!(benches, inline);
criterion_main!(benches);
