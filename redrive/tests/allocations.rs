//! A call that succeeds at once and borrows its arguments allocates nothing.

use redrive::retryable;
use redrive::testing::Testing;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

#[retryable]
async fn durable(order: &str) -> Result<usize, std::fmt::Error> {
    Ok(order.len())
}

#[retryable(persist = never, max_attempts = 3, timeout = "1m")]
async fn in_memory(order: &str) -> Result<usize, std::fmt::Error> {
    Ok(order.len())
}

#[tokio::test]
async fn a_success_allocates_nothing() {
    let redrive = Testing::new().await;
    let order = "an order".to_owned();
    let _profiler = dhat::Profiler::builder().testing().build();
    let before = dhat::HeapStats::get().total_blocks;
    for _ in 0..10_000 {
        assert_eq!(redrive.call(durable(&order)).await.unwrap(), 8);
        assert_eq!(redrive.call(in_memory(&order)).await.unwrap(), 8);
    }
    // What the engine's own services do meanwhile is counted, too.
    let blocks = dhat::HeapStats::get().total_blocks - before;
    assert!(blocks < 1_000, "{blocks} allocations in 20,000 calls");
}
