//! A trip: a hotel, then a flight and a car side by side, then the payment. It is booked as a whole, or not at all.
//!
//! ```sh
//! cargo run --example trip
//! ```
//!
//! Ada's trip is booked. Bob's flight is full, so what was booked for him is undone. Cleo's hotel does not take bookings back by itself: her trip is
//! stuck until a person has telephoned. Every step could be cut off by a crash at any moment; the next process would go on.

use redrive::saga::{Saga, SagaState, Step, StepCx, StepError, UndoKind};
use redrive::{Engine, Store};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Serialize, Deserialize)]
struct Trip {
    who: String,
    to: String,
}

struct BookHotel;
struct BookFlight;
struct BookCar;
struct Charge;

impl Step for BookHotel {
    const NAME: &'static str = "hotel";
    type Input = Trip;
    type Output = String;

    async fn run(&self, cx: &StepCx, trip: &Trip) -> Result<String, StepError> {
        println!("{}: a room in {}, under the key {}", trip.who, trip.to, cx.key());
        Ok(format!("room 7 in {}", trip.to))
    }

    async fn undo(&self, _: &StepCx, trip: &Trip, room: Option<String>) -> Result<(), StepError> {
        if trip.who == "Cleo" {
            return Err(StepError::refused("by telephone only"));
        }
        println!("{}: {} is given back", trip.who, room.unwrap_or_else(|| "whatever was booked".into()));
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Compensate
    }
}

impl Step for BookFlight {
    const NAME: &'static str = "flight";
    type Input = Trip;
    type Output = u32;

    async fn run(&self, _: &StepCx, trip: &Trip) -> Result<u32, StepError> {
        if trip.who != "Ada" {
            return Err(StepError::refused("the flight is full")); // nothing was booked: nothing to undo
        }
        println!("{}: a flight to {}", trip.who, trip.to);
        Ok(300)
    }

    async fn undo(&self, _: &StepCx, trip: &Trip, _: Option<u32>) -> Result<(), StepError> {
        println!("{}: the flight is cancelled", trip.who);
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Compensate
    }
}

impl Step for BookCar {
    const NAME: &'static str = "car";
    type Input = Trip;
    type Output = u32;

    async fn run(&self, cx: &StepCx, trip: &Trip) -> Result<u32, StepError> {
        if cx.attempt() == 1 {
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()); // tried again
        }
        println!("{}: a car in {}", trip.who, trip.to);
        Ok(80)
    }

    async fn undo(&self, _: &StepCx, trip: &Trip, price: Option<u32>) -> Result<(), StepError> {
        // It may have been stopped before it was known whether there is a car.
        println!("{}: the car is cancelled{}", trip.who, if price.is_some() { "" } else { ", should there be one" });
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Compensate
    }
}

impl Step for Charge {
    const NAME: &'static str = "charge";
    type Input = Trip;
    type Output = u32;

    async fn run(&self, cx: &StepCx, trip: &Trip) -> Result<u32, StepError> {
        let sum = cx.output::<BookFlight>()? + cx.output::<BookCar>()?;
        println!("{}: {sum} for flight and car, and {}", trip.who, cx.output::<BookHotel>()?);
        Ok(sum)
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Irreversible
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let trip = Saga::new("trip")
        .step(BookHotel)
        .step(BookFlight)
        .after(BookHotel)
        .step(BookCar)
        .after(BookHotel)
        .step(Charge)
        .after(BookFlight)
        .after(BookCar)
        .pivot(); // once it is paid there is no way back
    let engine = Engine::builder(Store::open("sqlite::memory:").await?).saga(trip).start().await?;
    let sagas = engine.sagas();
    for who in ["Ada", "Bob", "Cleo"] {
        let trip = Trip { who: who.into(), to: "Lisbon".into() };
        sagas.start("trip", who, &trip).await?;
        let stands = sagas.until(who, |state| state.is_final() || state == SagaState::Stuck).await?;
        println!("{who}: {}", stands.state);
    }
    sagas.resolve("Cleo", "hotel", json!(null), Some("dora"), Some("cancelled by telephone")).await?;
    println!("Cleo: {}", sagas.ended("Cleo").await?.state);
    engine.stop().await;
    Ok(())
}
