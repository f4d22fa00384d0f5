//! An order: stock is held for 15 minutes. If it is not paid by then, the stock is released, and the saga is back at the order, waiting for a new
//! one.
//!
//! ```sh
//! cargo run --example reservation
//! ```
//!
//! It runs by a clock of its own, so that nobody has to wait for 15 minutes. Each time the saga comes past a step that is another round, with keys of its
//! own: what was released in the first round has nothing to do with what is reserved in the second.

use std::time::Duration;

use redrive::saga::{Reserve, Saga, Step, StepCx, StepError, UndoKind};
use redrive::testing::Testing;
use serde::{Deserialize, Serialize};

struct HoldStock;
struct Ship;

#[derive(Serialize, Deserialize)]
struct Order {
    books: u32,
}

impl Step for HoldStock {
    const NAME: &'static str = "stock";
    type Input = String;
    type Output = u32;

    async fn run(&self, cx: &StepCx, who: &String) -> Result<u32, StepError> {
        let order: Order = cx.output_of("order")?;
        println!("{} books are held for {who} ({})", order.books, cx.key());
        Ok(order.books)
    }

    async fn undo(&self, cx: &StepCx, who: &String, held: Option<u32>) -> Result<(), StepError> {
        println!("{} books are released, {who} has not paid ({})", held.unwrap_or_default(), cx.key());
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Compensate
    }
}

impl Reserve for HoldStock {
    async fn confirm(&self, cx: &StepCx, who: &String, held: u32) -> Result<(), StepError> {
        println!("{held} books are {who}'s ({})", cx.key());
        Ok(())
    }
}

impl Step for Ship {
    const NAME: &'static str = "ship";
    type Input = String;
    type Output = ();

    async fn run(&self, cx: &StepCx, who: &String) -> Result<(), StepError> {
        println!("a parcel for {who}: {} books, {} paid", cx.output::<HoldStock>()?, cx.output_of::<u32>("paid")?);
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Nothing
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let order = Saga::new("order")
        .wait_for("order", None)
        .reserve(HoldStock, Duration::from_secs(15 * 60))
        .after("order")
        .back_to("order")
        .wait_for("paid", None)
        .after(HoldStock)
        .step(Ship)
        .after("paid");
    let shop = Testing::with(|builder| builder.saga(order)).await;
    let sagas = shop.sagas();
    sagas.start("order", "order-7", &"Ada").await?;

    sagas.signal("order-7", "order", &Order { books: 2 }, None).await?;
    shop.run_due().await;
    shop.advance("15m").await;
    println!("after 15 minutes: {}", sagas.until("order-7", |_| true).await?.state);

    sagas.signal("order-7", "order", &Order { books: 1 }, None).await?;
    shop.run_due().await;
    shop.advance("14m").await;
    sagas.signal("order-7", "paid", &20, None).await?;
    shop.run_due().await;
    println!("paid in time: {}", sagas.ended("order-7").await?.state);
    Ok(())
}
