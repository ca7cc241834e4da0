//! Harm to a publisher's process, and to all its wires at once.

use rustix::process::Signal;

use super::keeper::Keeper;
use crate::harness::Dice;

impl Keeper<'_> {
    pub(super) fn harm(&mut self, n: usize, dice: &mut Dice) {
        match dice.between(0, 12) {
            0..3 => {
                let down = *dice.pick(&[0, 0, 300, 3_000]);
                self.fault(n, "killed", &format!(", down for {down} ms"));
                self.kill(n);
                self.history.pass(down);
                self.start(n);
            }
            3 => {
                self.fault(n, "killed", " twice");
                self.kill(n);
                self.start(n);
                self.history.pass(dice.between(50, 1_500));
                self.kill(n);
                self.start(n);
            }
            4..6 => {
                self.fault(n, "stopped", "");
                self.stop(n);
                self.start(n);
            }
            6 => {
                self.fault(n, "stopped", " and killed meanwhile");
                self.signal(n, Signal::TERM);
                self.history.pass(dice.between(0, 300));
                // It may have ended already, as it was told to.
                drop(self.publishers[n].run.take());
                self.start(n);
            }
            7..9 => self.freeze(n, dice.between(50, 2_500)),
            // Longer than either server waits.
            9..11 => self.freeze(n, dice.between(5_500, 9_000)),
            _ => {
                let hold = dice.between(5_500, 10_000);
                self.fault(n, "cut off", &format!(" for {hold} ms"));
                let wires = self.publishers[n].wires;
                for wire in [&wires.kafka, &wires.postgres] {
                    wire.swallow();
                }
                self.history.pass(hold);
                for wire in [&wires.kafka, &wires.postgres] {
                    wire.forward();
                    wire.reset_swallowed();
                }
                self.note(n, "reachable");
            }
        }
    }

    fn freeze(&mut self, n: usize, milliseconds: u64) {
        self.fault(n, "frozen", &format!(" for {milliseconds} ms"));
        self.signal(n, Signal::STOP);
        self.history.pass(milliseconds);
        self.signal(n, Signal::CONT);
        self.note(n, "thawed");
    }
}
