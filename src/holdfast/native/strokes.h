/* The strokes of `board/strokes.py` that a training step needs, in C: a heartbeat with its step, a section's edges.

   They store what the Python strokes store, word for word, into the page that the writer is bound to, and count in the
   same numbers. The interpreter's lock is held throughout and no Python code runs within a stroke: so no signal handler
   does, no other thread writes, and only the death of the process can leave one half done. Where things lie comes from
   `board/layout.py` (`use_layout`). Does not cover: interpreters without the global lock, for which this is not built. */

#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <time.h>

enum {
    SEQUENCE, HEARTBEATS, LAST_HEARTBEAT, STEP, SECTIONS_OPENED, OUT_SINCE, LAST_EDGE, SINCE,
    RING, RING_MASK, EVENT_WORDS, KIND_BITS, START, END, STEPPED, FIRST_STEP, LONGEST_STEP, SPENT, CLOSED,
    LAYOUT_SIZE
};
static long long at[LAYOUT_SIZE];

typedef struct {
    PyObject_HEAD
    long long sequence, beats, opened_ever, out_since, last_beat, longest_gap;
    char over;
    int64_t *words;  /* the page, or private memory; NULL before the first binding */
    PyObject *keep;  /* keeps the memory mapped */
} Counts;

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Aligned, never torn, and in this order for who reads the page. */
static void put(int64_t *words, long long where, int64_t value) {
    __atomic_store_n(words + where, value, __ATOMIC_RELEASE);
}

static int64_t *entry_of(const Counts *writer) {
    return writer->words + at[RING] + (writer->sequence >> 1 & at[RING_MASK]) * at[EVENT_WORDS];
}

static void heartbeat(Counts *writer, int64_t now, long long step) {
    int64_t *words = writer->words, *entry = entry_of(writer);
    writer->beats += 1;
    put(words, at[SEQUENCE], writer->sequence + 1);
    put(words, at[HEARTBEATS], writer->beats);
    put(words, at[LAST_HEARTBEAT], now);
    put(words, at[STEP], step + 1);
    put(entry, 0, now);
    put(entry, 1, at[STEPPED]);
    put(entry, 2, step);
    writer->sequence += 2;
    put(words, at[SEQUENCE], writer->sequence);
}

static void open_section(Counts *writer, int64_t now, long long slot) {
    int64_t *words = writer->words, *entry = entry_of(writer);
    writer->out_since = 0;
    writer->opened_ever += 1;
    put(words, at[SEQUENCE], writer->sequence + 1);
    put(words, at[SECTIONS_OPENED], writer->opened_ever);
    put(words, at[SINCE] + slot, now);
    put(words, at[OUT_SINCE], 0);
    put(words, at[LAST_EDGE], now);
    put(entry, 0, now);
    put(entry, 1, at[START] | (slot + 1) << at[KIND_BITS]);
    writer->sequence += 2;
    put(words, at[SEQUENCE], writer->sequence);
}

/* A total stays in 63 bits, as in Python. */
static void add(int64_t *words, long long where, int64_t value) {
    put(words, where, (int64_t)(((uint64_t)words[where] + (uint64_t)value) & INT64_MAX));
}

/* `others`: sections that stay open. A step is no checkpoint, so the step of the last one stays. */
static void close_section(Counts *writer, int64_t now, int64_t since, long long slot, long long others) {
    int64_t *words = writer->words, *entry = entry_of(writer);
    writer->out_since = others ? 0 : now;
    put(words, at[SEQUENCE], writer->sequence + 1);
    put(words, at[SINCE] + slot, 0);
    add(words, at[SPENT] + slot, now - since);
    add(words, at[CLOSED] + slot, 1);
    put(words, at[OUT_SINCE], writer->out_since);
    put(words, at[LAST_EDGE], now);
    put(entry, 0, now);
    put(entry, 1, at[END] | (slot + 1) << at[KIND_BITS]);
    writer->sequence += 2;
    put(words, at[SEQUENCE], writer->sequence);
}

static PyObject *counts_point_at(Counts *self, PyObject *args) {
    unsigned long long address;
    PyObject *keep, *before = self->keep;
    if (!PyArg_ParseTuple(args, "KO", &address, &keep)) return NULL;
    Py_INCREF(keep);
    self->words = (int64_t *)(uintptr_t)address;
    self->keep = keep;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* One counted step (`board/counted_steps.py`): a heartbeat, and the times that limits are learned from. */
static PyObject *counts_count_step(Counts *self, PyObject *number) {
    long long step = PyLong_AsLongLong(number), gap;
    int64_t now = clock_ns();
    if (step == -1 && PyErr_Occurred()) return NULL;
    heartbeat(self, now, step);
    gap = now - self->last_beat;
    if (self->last_beat == 0) put(self->words, at[FIRST_STEP], now);
    else if (gap > self->longest_gap) put(self->words, at[LONGEST_STEP], self->longest_gap = gap);
    self->last_beat = now;
    Py_RETURN_NONE;
}

static void counts_dealloc(Counts *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_CLEAR(self->keep);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define NUMBER(python, field) {python, T_LONGLONG, offsetof(Counts, field), 0, NULL}
static PyMemberDef counts_members[] = {
    NUMBER("_sequence", sequence), NUMBER("_beats", beats), NUMBER("_opened_ever", opened_ever),
    NUMBER("_out_since", out_since), NUMBER("_last_beat", last_beat),
    NUMBER("_longest_gap", longest_gap), {"_over", T_BOOL, offsetof(Counts, over), 0, NULL}, {NULL},
};
static PyMethodDef counts_methods[] = {
    {"_point_at", (PyCFunction)counts_point_at, METH_VARARGS,
     "The words that strokes store into: their address, and what keeps the memory there."},
    {"_count_step", (PyCFunction)counts_count_step, METH_O, "A counted step, with its number."},
    {NULL},
};
static PyType_Slot counts_slots[] = {
    {Py_tp_dealloc, counts_dealloc}, {Py_tp_members, counts_members}, {Py_tp_methods, counts_methods},
    {Py_tp_doc, "What a writer counts; see board/counts.py."}, {0, NULL},
};
static PyType_Spec counts_spec = {
    "holdfast._step.Counts", sizeof(Counts), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, counts_slots,
};
