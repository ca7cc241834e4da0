//! The thread that takes a producer's reports out of librdkafka and hands them to the context.
//!
//! It sleeps until librdkafka says that there are some. Waiting within rdkafka's `poll` instead would
//! keep a core busy for the last millisecond of each wait, where it looks again without waiting.

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use rdkafka::{
    bindings::{
        rd_kafka_queue_cb_event_enable, rd_kafka_queue_destroy, rd_kafka_queue_get_main,
        rd_kafka_queue_length, rd_kafka_queue_t, rd_kafka_t,
    },
    error::{KafkaError, KafkaResult},
    producer::{BaseProducer, Producer as _},
};

use super::context::Context;

/// Time from one look at the reports to the next: what arrives meanwhile is taken at once.
const GATHER: Duration = Duration::from_micros(200);

/// It looks so often even if nothing woke it.
const LOOK: Duration = Duration::from_secs(1);

/// A client's main queue, which its reports come through.
struct Queue(*mut rd_kafka_queue_t);

// SAFETY: librdkafka's handles may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    fn of(client: &BaseProducer<Context>) -> Self {
        // SAFETY: the client is alive; `Poller` gives the handle back before it lets the client go.
        Queue(unsafe { rd_kafka_queue_get_main(client.client().native_ptr()) })
    }

    fn is_empty(&self) -> bool {
        // SAFETY: the handle is held.
        unsafe { rd_kafka_queue_length(self.0) == 0 }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: held, and given back once.
        unsafe { rd_kafka_queue_destroy(self.0) };
    }
}

pub struct Poller {
    queue: Arc<Queue>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// librdkafka has its address: it stays where it is.
    sleeper: Box<Thread>,
}

impl Poller {
    pub fn start(client: Arc<BaseProducer<Context>>) -> KafkaResult<Self> {
        let queue = Arc::new(Queue::of(&client));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("kafka-reports".into()).spawn({
            let (queue, stop) = (queue.clone(), stop.clone());
            move || poll(&client, queue, &stop)
        });
        let thread =
            thread.map_err(|_| KafkaError::ClientCreation("no thread to be had".into()))?;
        let sleeper = Box::new(thread.thread().clone());
        // SAFETY: the address holds until `drop` has taken the callback away.
        unsafe {
            let sleeper = ptr::from_ref(&*sleeper).cast_mut().cast();
            rd_kafka_queue_cb_event_enable(queue.0, Some(wake), sleeper);
        }
        // What came before that woke nobody.
        sleeper.unpark();
        Ok(Poller {
            queue,
            stop,
            thread: Some(thread),
            sleeper,
        })
    }

    /// The thread ended though nobody asked it to.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // SAFETY: the handle is held. librdkafka calls back with the queue locked, and this locks it:
        // afterwards nobody has the sleeper's address.
        unsafe { rd_kafka_queue_cb_event_enable(self.queue.0, None, ptr::null_mut()) };
        self.stop.store(true, Ordering::Relaxed);
        self.sleeper.unpark();
        if let Some(thread) = self.thread.take() {
            // Its panic was seen as its end already.
            let _ = thread.join();
        }
    }
}

/// Called by librdkafka's threads when the first report enters an empty queue.
unsafe extern "C" fn wake(_: *mut rd_kafka_t, sleeper: *mut c_void) {
    // SAFETY: `Poller` keeps it for as long as this may be called.
    unsafe { &*sleeper.cast::<Thread>() }.unpark();
}

fn poll(client: &BaseProducer<Context>, queue: Arc<Queue>, stop: &AtomicBool) {
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(GATHER.saturating_sub(looked.elapsed()));
        // One call takes one report, of one partition's batch.
        while !queue.is_empty() {
            client.poll(Duration::ZERO);
        }
        looked = Instant::now();
        thread::park_timeout(LOOK);
    }
}
