BEGIN TRANSACTION;
CREATE TABLE info (
	name VARCHAR NOT NULL, 
	value VARCHAR, 
	PRIMARY KEY (name)
);
INSERT INTO "info" VALUES('schema','1');
CREATE TABLE records (
	id INTEGER NOT NULL, 
	workload VARCHAR NOT NULL, 
	template VARCHAR NOT NULL, 
	choice TEXT NOT NULL, 
	device VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	versions VARCHAR NOT NULL, 
	pipeline VARCHAR NOT NULL, 
	schedules VARCHAR NOT NULL, 
	protocol VARCHAR NOT NULL, 
	status TEXT NOT NULL, 
	median_s FLOAT, 
	spread_s FLOAT NOT NULL, 
	is_default BOOLEAN NOT NULL, 
	is_final BOOLEAN NOT NULL, 
	"when" FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "records" VALUES(1,'f4863c92de0744da','dense','{"decisions":{"m":1},"template":"dense"}','haswell-4c-01234567','{"kind": "llvm", "mcpu": "haswell", "num-cores": 4}','tvm 0.27.0, ffi 0.1.14','349cb3c87ed52dcb','1','1','ok',2.0e-05,0.0,1,1,1796091102.25);
INSERT INTO "records" VALUES(2,'f4863c92de0744da','dense','{"decisions":{"m":2},"template":"dense"}','haswell-4c-01234567','{"kind": "llvm", "mcpu": "haswell", "num-cores": 4}','tvm 0.27.0, ffi 0.1.14','349cb3c87ed52dcb','1','1','ok',1.0e-05,1.0e-07,0,1,1796091102.25);
INSERT INTO "records" VALUES(3,'f4863c92de0744da','dense','{"decisions":{"m":3},"template":"dense"}','haswell-4c-01234567','{"kind": "llvm", "mcpu": "haswell", "num-cores": 4}','tvm 0.27.0, ffi 0.1.14','349cb3c87ed52dcb','1','1','run: crash (signal 11)',NULL,0.0,0,0,1796091102.25);
INSERT INTO "records" VALUES(4,'f4863c92de0744da','dense','{"decisions":{"m":4},"template":"dense"}','haswell-4c-01234567','{"kind": "llvm", "mcpu": "haswell", "num-cores": 4}','tvm 0.27.0, ffi 0.1.14','349cb3c87ed52dcb','1','1','ok',3.0e-05,0.0,0,0,1796091102.25);
INSERT INTO "records" VALUES(5,'f4863c92de0744da','dense','{"decisions":{"m":4},"template":"dense"}','haswell-4c-01234567','{"kind": "llvm", "mcpu": "haswell", "num-cores": 4}','tvm 0.26.0, ffi 0.1.9','349cb3c87ed52dcb','1','1','ok',3.0e-05,0.0,0,0,1796091102.25);
INSERT INTO "records" VALUES(6,'9bef3f4222c9cc51','dense','{"decisions":{"m":1},"template":"dense"}','haswell-4c-01234567','{"kind": "llvm", "mcpu": "haswell", "num-cores": 4}','tvm 0.27.0, ffi 0.1.14','349cb3c87ed52dcb','1','1','ok',4.0e-05,0.0,0,0,1796091102.25);
CREATE TABLE workloads (
	digest VARCHAR NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "workloads" VALUES('f4863c92de0744da','def main(x: T.Buffer((T.int64(2), T.int64(32)), "float32")):
    pass');
INSERT INTO "workloads" VALUES('9bef3f4222c9cc51','def main(x: T.Buffer((T.int64(2), T.int64(64)), "float64")):
    pass');
CREATE INDEX ix_records_workload ON records (workload);
CREATE UNIQUE INDEX one_per_key ON records (workload, choice, device, target, versions, pipeline, schedules, protocol);
CREATE INDEX ix_records_template ON records (template);
COMMIT;
