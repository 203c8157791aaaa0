/* `ptl_resiliency/step_call.py` in C: the wrapper of a strategy's `training_step`. `PlainStepCall` there says what is
   done and why; this does the same, with the strokes of `strokes.h`. What always holds: the section is closed before an
   exception of the call is passed on; what closing it raises (a signal handler in an observer) has that beside it. */

#include "strokes.h"

#define MOST_COLLECTED 512

typedef struct {
    PyObject_HEAD
    PyObject *original, *counter, *arm, *lost, *writer, *steps, *section, *told, *detector, *session, *remeasure,
        *measured, *inner;
    long long ready, base, began, due;
    char active, within;
    /* Of the writer and the section, looked up when one of them has changed. */
    PyObject *bound_writer, *bound_section, *opened, *tell_beat, *tell_inside, *tell_outside;
    long long slot, longest_inside, longest_outside;
    /* The page of the agreed stop; NULL: none. */
    int64_t *page;
    PyObject *page_keep;
    long long page_number, page_position, settled;
    /* Times, in nanoseconds, that the measured section has not got yet: it asks for them. */
    PyObject *collects_for;
    Py_ssize_t collected;
    int64_t times[MOST_COLLECTED];
} StepCall;

static PyTypeObject *counts_type;
static PyObject *n_ready, *n_completed, *n_session, *n_kept, *n_count, *n_extend, *n_opened, *n_slots;
static long long long_step, position_bits;

#define GIVEN(field) ((field) != NULL && (field) != Py_None)

static int tell(PyObject *function, PyObject *argument) {
    PyObject *done = PyObject_CallFunctionObjArgs(function, argument, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int number_of(PyObject *object, PyObject *name, long long *found) {
    PyObject *value = PyObject_GetAttr(object, name), *whole = value ? PyNumber_Index(value) : NULL;
    Py_XDECREF(value);
    if (whole == NULL) return -1;
    *found = PyLong_AsLongLong(whole);
    Py_DECREF(whole);
    return *found == -1 && PyErr_Occurred() ? -1 : 0;
}

static int put_object(PyObject **where, PyObject *fresh) {
    PyObject *before = *where;
    *where = fresh;
    Py_XDECREF(before);
    return fresh == NULL ? -1 : 0;
}

static int bind(StepCall *self) {
    PyObject *slots, *slot;
    if (self->bound_writer == self->writer && self->bound_section == self->section) return 0;
    put_object(&self->bound_writer, NULL);
    if (!PyObject_TypeCheck(self->writer, counts_type)) {
        PyErr_SetString(PyExc_TypeError, "a writer of the C core is needed");
        return -1;
    }
    if (put_object(&self->opened, PyObject_GetAttr(self->writer, n_opened)) < 0 ||
        put_object(&self->tell_beat, PyObject_GetAttrString(self->writer, "_observe_heartbeat")) < 0 ||
        put_object(&self->tell_inside, PyObject_GetAttrString(self->writer, "_observe_inside")) < 0 ||
        put_object(&self->tell_outside, PyObject_GetAttrString(self->writer, "_observe_outside")) < 0)
        return -1;
    self->slot = -1;
    if (GIVEN(self->section)) {
        if ((slots = PyObject_GetAttr(self->writer, n_slots)) == NULL) return -1;
        slot = PyObject_GetItem(slots, self->section);
        Py_DECREF(slots);
        if (slot == NULL) {  /* never opened before: its name goes on the board */
            PyErr_Clear();
            slot = PyObject_CallMethod(self->writer, "_new_slot", "O", self->section);
        }
        if (slot == NULL) return -1;
        self->slot = PyLong_AsLongLong(slot);
        Py_DECREF(slot);
        if (self->slot == -1 && PyErr_Occurred()) return -1;
    }
    self->longest_inside = -1;
    self->longest_outside = 0;
    if (self->section != NULL) Py_INCREF(self->section);
    put_object(&self->bound_section, self->section);
    Py_INCREF(self->writer);
    put_object(&self->bound_writer, self->writer);
    return 0;
}

static int beat(StepCall *self, int64_t now) {
    Counts *writer = (Counts *)self->writer;
    long long step, gap;
    PyObject *done;
    if (number_of(self->steps, n_completed, &step) < 0) return -1;
    if (step <= -(1LL << 62) || step >= 1LL << 62) {
        PyErr_Format(PyExc_ValueError, "step %lld is out of range", step);
        return -1;
    }
    heartbeat(writer, now, step);
    gap = writer->last_beat ? now - writer->last_beat : 0;
    writer->last_beat = now;
    if (gap <= writer->longest_gap) return 0;
    writer->longest_gap = gap;
    done = PyObject_CallFunction(self->tell_beat, "LL", (long long)now, gap);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int batch(StepCall *self, long long ready, int64_t now) {
    long long before = self->ready, last = self->began;
    int due;
    self->ready = ready;
    self->began = now;
    if (GIVEN(self->writer)) {
        if (bind(self) < 0) return -1;
        if (((Counts *)self->writer)->over) {
            if (tell(self->lost, NULL) < 0) return -1;
        } else if (GIVEN(self->steps) && beat(self, now) < 0) {
            return -1;
        }
    }
    due = ready >= self->due || ready != before + 1;
    if (self->page != NULL && !due) {
        due = now - last > long_step ||
              __atomic_load_n(self->page + self->page_number, __ATOMIC_ACQUIRE) != self->settled;
        if (!due) put(self->page, self->page_position, (ready - self->base) << position_bits);
    }
    return due ? tell(self->arm, NULL) : 0;
}

/* After `bind`, and only with what that has bound: an observer, or a signal handler in it, may take the writer away.
   1: open now by this call; 0: not; -1: an error, and it is not. */
static int open_step(StepCall *self, int64_t now) {
    Counts *writer = (Counts *)self->bound_writer;
    PyObject *since;
    long long out = writer->out_since ? now - writer->out_since : 0;
    int open;
    if (out > self->longest_outside) {  /* sooner than it is opened: what a signal handler raises finds it closed */
        PyObject *done = PyObject_CallFunction(self->tell_outside, "L", out);
        self->longest_outside = out;
        if (done == NULL) return -1;
        Py_DECREF(done);
    }
    if ((open = PyDict_Contains(self->opened, self->bound_section)) < 0) return -1;
    if (open) return tell(self->told, Py_False);
    if ((since = PyLong_FromLongLong(now)) == NULL) return -1;
    open = PyDict_SetItem(self->opened, self->bound_section, since);
    Py_DECREF(since);
    if (open < 0) return -1;
    open_section(writer, now, self->slot);
    return 1;
}

static int close_step(StepCall *self, PyObject *whose, int64_t now) {
    PyObject *found = self->bound_writer == whose ? PyDict_GetItemWithError(self->opened, self->bound_section) : NULL;
    long long since;
    if (found == NULL) return PyErr_Occurred() ? -1 : tell(self->told, Py_True);
    since = PyLong_AsLongLong(found);
    if (PyDict_DelItem(self->opened, self->bound_section) < 0) return -1;
    close_section((Counts *)whose, now, since, self->slot, PyDict_Size(self->opened));
    if (now - since > self->longest_inside) {
        PyObject *done = PyObject_CallFunction(self->tell_inside, "OL", self->bound_section, (long long)(now - since));
        self->longest_inside = now - since;
        if (done == NULL) return -1;
        Py_DECREF(done);
    }
    return 0;
}

/* What was collected goes to the section that it was collected for. */
static int give(StepCall *self) {
    PyObject *times = PyList_New(0), *section = self->collects_for, *kept = NULL, *done = NULL, *count = NULL;
    Py_ssize_t number = times ? self->collected : 0, each;
    long long before;
    int failed = times == NULL;
    self->collected = 0;  /* from here to the end of the loop no other code runs, and nothing is collected */
    for (each = 0; each < number && !failed; each++) {
        PyObject *one = PyLong_FromLongLong(self->times[each]);
        failed = one == NULL || PyList_Append(times, one) < 0;
        Py_XDECREF(one);
    }
    if (!failed && number > 0) {
        Py_INCREF(section);
        failed = (kept = PyObject_GetAttr(section, n_kept)) == NULL ||
                 (done = PyObject_CallMethodObjArgs(kept, n_extend, times, NULL)) == NULL ||
                 number_of(section, n_count, &before) < 0 ||
                 (count = PyLong_FromLongLong(before + number)) == NULL ||
                 PyObject_SetAttr(section, n_count, count) < 0;
        Py_XDECREF(count);
        Py_XDECREF(done);
        Py_XDECREF(kept);
        Py_DECREF(section);
    }
    Py_XDECREF(times);
    return failed ? -1 : 0;
}

/* Another section is measured from now on. */
static int take_up(StepCall *self) {
    PyObject *section = self->measured, *other = PyObject_GetAttrString(section, "collected"), *asked = NULL;
    int failed = other == NULL || tell(other, NULL) < 0 || give(self) < 0 ||
                 (asked = PyObject_GetAttrString((PyObject *)self, "_give")) == NULL ||
                 PyObject_SetAttrString(section, "collected", asked) < 0;
    Py_XDECREF(asked);
    Py_XDECREF(other);
    if (failed) return -1;
    Py_INCREF(section);
    return put_object(&self->collects_for, section);
}

static int keep(StepCall *self, int64_t spent) {
    if (self->measured != self->collects_for && take_up(self) < 0) return -1;
    self->times[self->collected++] = spent;
    return self->collected < MOST_COLLECTED ? 0 : give(self);
}

static int begin(StepCall *self, int64_t now, PyObject **opened) {
    long long ready;
    int open;
    if (number_of(self->counter, n_ready, &ready) < 0) return -1;
    if (ready != self->ready && batch(self, ready, now) < 0) return -1;
    if (GIVEN(self->detector)) {
        PyObject *session = PyObject_GetAttr(self->detector, n_session);
        if (session == NULL) return -1;
        open = session != self->session && !(session == Py_None && self->session == NULL);
        Py_DECREF(session);
        if (open && tell(self->remeasure, NULL) < 0) return -1;
    }
    if (!GIVEN(self->writer) || !GIVEN(self->section)) return 0;
    if (bind(self) < 0 || (open = open_step(self, now)) < 0) return -1;
    if (open) {
        *opened = self->bound_writer;
        Py_INCREF(*opened);
    }
    return 0;
}

static PyObject *call_original(StepCall *self, PyObject *args, PyObject *kwargs) {
    PyObject *found, *named = kwargs, *function = GIVEN(self->inner) ? self->inner : self->original;
    Py_INCREF(function);  /* it may be replaced while it runs */
    if (function == self->original) {
        found = PyObject_Call(function, args, kwargs);
    } else {
        if (named == NULL) named = PyDict_New();
        else Py_INCREF(named);
        found = named ? PyObject_CallFunctionObjArgs(function, self->original, args, named, NULL) : NULL;
        Py_XDECREF(named);
    }
    Py_DECREF(function);
    return found;
}

/* The error that is set stays so, with what the call has raised beside it: as Python's `finally` has it. */
static void leave_beside(PyObject *kind, PyObject *error, PyObject *trace) {
    PyObject *last_kind, *last, *last_trace;
    PyErr_Fetch(&last_kind, &last, &last_trace);
    PyErr_NormalizeException(&last_kind, &last, &last_trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace != NULL && error != NULL) PyException_SetTraceback(error, trace);
    if (last != NULL && error != NULL && last != error) {
        Py_INCREF(error);
        PyException_SetContext(last, error);  /* takes the reference */
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    PyErr_Restore(last_kind, last, last_trace);
}

static PyObject *step_call(StepCall *self, PyObject *args, PyObject *kwargs) {
    PyObject *found, *opened = NULL, *kind, *error, *trace;
    int64_t began, ended;
    int failed;
    if (self->original == NULL) return PyErr_Format(PyExc_RuntimeError, "nothing is wrapped");
    if (self->within || !self->active || self->counter == NULL) {
        PyObject *function = self->original;
        Py_INCREF(function);
        found = PyObject_Call(function, args, kwargs);
        Py_DECREF(function);
        return found;
    }
    began = clock_ns();
    if (begin(self, began, &opened) < 0) return NULL;
    self->within = 1;
    found = call_original(self, args, kwargs);
    self->within = 0;
    PyErr_Fetch(&kind, &error, &trace);
    ended = clock_ns();
    failed = opened != NULL && close_step(self, opened, ended) < 0;
    if (!failed) failed = GIVEN(self->measured) && keep(self, ended - began) < 0;
    Py_XDECREF(opened);
    if (failed && found != NULL) {  /* what a signal handler raised in an observer */
        Py_DECREF(found);
        return NULL;
    }
    if (failed) leave_beside(kind, error, trace);
    else PyErr_Restore(kind, error, trace);
    return found;
}

static PyObject *give_now(StepCall *self, PyObject *args) {
    (void)args;
    return give(self) < 0 ? NULL : Py_BuildValue("");
}

static PyObject *look_at(StepCall *self, PyObject *args) {
    unsigned long long address;
    PyObject *keep_page;
    if (!PyArg_ParseTuple(args, "KOLLL", &address, &keep_page, &self->page_number, &self->page_position,
                          &self->settled))
        return NULL;
    self->page = (int64_t *)(uintptr_t)address;
    Py_INCREF(keep_page);
    put_object(&self->page_keep, keep_page);
    Py_RETURN_NONE;
}

#define EACH_OBJECT(DO) \
    DO(original) DO(counter) DO(arm) DO(lost) DO(writer) DO(steps) DO(section) DO(told) DO(detector) DO(session) \
    DO(remeasure) DO(measured) DO(inner) DO(bound_writer) DO(bound_section) DO(opened) DO(tell_beat) \
    DO(tell_inside) DO(tell_outside) DO(page_keep) DO(collects_for)

static int step_traverse(StepCall *self, visitproc visit, void *arg) {
#define VISIT(field) Py_VISIT(self->field);
    EACH_OBJECT(VISIT)
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int step_clear(StepCall *self) {
#define CLEAR(field) Py_CLEAR(self->field);
    self->page = NULL;
    self->collected = 0;
    EACH_OBJECT(CLEAR)
    return 0;
}

static void step_dealloc(StepCall *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    step_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define OBJECT(name) {#name, T_OBJECT, offsetof(StepCall, name), 0, NULL}
#define LONG(name) {#name, T_LONGLONG, offsetof(StepCall, name), 0, NULL}
static PyMemberDef step_members[] = {
    OBJECT(original), OBJECT(counter), OBJECT(arm), OBJECT(lost), OBJECT(writer), OBJECT(steps), OBJECT(section),
    OBJECT(told), OBJECT(detector), OBJECT(session), OBJECT(remeasure), OBJECT(measured), OBJECT(inner), LONG(ready),
    LONG(base), LONG(began), LONG(due), {"active", T_BOOL, offsetof(StepCall, active), 0, NULL},
    {"within", T_BOOL, offsetof(StepCall, within), 0, NULL}, {NULL},
};
static PyMethodDef step_methods[] = {
    {"_look_at", (PyCFunction)look_at, METH_VARARGS, "The page: address, keeper, number's and position's word, settled."},
    {"_give", (PyCFunction)give_now, METH_NOARGS, "Give the measured section the times that it has not got yet."},
    {NULL},
};
static PyType_Slot step_slots[] = {
    {Py_tp_dealloc, step_dealloc}, {Py_tp_traverse, step_traverse}, {Py_tp_clear, step_clear},
    {Py_tp_call, step_call}, {Py_tp_members, step_members}, {Py_tp_methods, step_methods},
    {Py_tp_doc, "The wrapper; see ptl_resiliency/step_call.py."}, {0, NULL},
};
static PyType_Spec step_spec = {
    "holdfast._step.StepCall", sizeof(StepCall), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, step_slots,
};

static PyObject *use_layout(PyObject *module, PyObject *words) {
    (void)module;
    if (!PyTuple_Check(words) || PyTuple_Size(words) != LAYOUT_SIZE)
        return PyErr_Format(PyExc_ValueError, "%d numbers are needed", LAYOUT_SIZE);
    for (Py_ssize_t each = 0; each < LAYOUT_SIZE; each++) {
        at[each] = PyLong_AsLongLong(PyTuple_GetItem(words, each));
        if (PyErr_Occurred()) return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *use_limits(PyObject *module, PyObject *args) {
    (void)module;
    return PyArg_ParseTuple(args, "LL", &long_step, &position_bits) ? Py_BuildValue("") : NULL;
}

static PyMethodDef functions[] = {
    {"use_layout", use_layout, METH_O, "Where things lie on a board; see board/counts.py."},
    {"use_limits", use_limits, METH_VARARGS, "What a long step is, and by how much a position is shifted."},
    {NULL},
};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "holdfast._step", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__step(void) {
    PyObject *module = PyModule_Create(&module_def), *counts = NULL, *step = NULL;
    n_ready = PyUnicode_InternFromString("ready");
    n_completed = PyUnicode_InternFromString("completed");
    n_session = PyUnicode_InternFromString("_session");
    n_kept = PyUnicode_InternFromString("kept");
    n_count = PyUnicode_InternFromString("count");
    n_extend = PyUnicode_InternFromString("extend");
    n_opened = PyUnicode_InternFromString("_opened");
    n_slots = PyUnicode_InternFromString("_slots");
    if (module == NULL || PyErr_Occurred() || (counts = PyType_FromSpec(&counts_spec)) == NULL ||
        (step = PyType_FromSpec(&step_spec)) == NULL)
        return NULL;
    counts_type = (PyTypeObject *)counts;
    Py_INCREF(counts);
    if (PyModule_AddObject(module, "Counts", counts) < 0 || PyModule_AddObject(module, "StepCall", step) < 0)
        return NULL;
    return module;
}
