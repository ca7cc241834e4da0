-- Version 2: which timeline the slot was last read on. A promoted standby has another one.

ALTER TABLE walpost.slot ADD COLUMN timeline integer;
