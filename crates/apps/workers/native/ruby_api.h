/* The part of Ruby's C API that `ruby.c` uses, declared here so that no headers of Ruby are needed
 * to compile it: functions and variables that Ruby 2.7 to 3.4 export. The layout of strings and
 * arrays and the numbers of nil and true, which the headers of Ruby have inline, differ between
 * versions and are not used: `ruby.c` asks functions, or the scripts tell it. */

#ifndef PENSTOCK_RUBY_API_H
#define PENSTOCK_RUBY_API_H

#include <stddef.h>

typedef unsigned long VALUE;
typedef unsigned long ID;

/* Since Ruby 2.7: `dcompact` was a reserved word before. */
typedef struct {
    const char *name;
    void (*mark)(void *);
    void (*free)(void *);
    size_t (*size)(const void *);
    void (*compact)(void *);
    void *reserved;
    const void *parent;
    void *data;
    VALUE flags;
} rb_data_type_t;

/* A function of any parameters, which Ruby calls as its number of arguments says. */
typedef void (*any_function)(void);

enum { RUBY_TYPED_FREE_IMMEDIATELY = 1 };
enum { ST_CONTINUE = 0, ST_STOP = 1 };

/* Interrupts what a thread waits for by a signal to it, until it has left that. */
#define RUBY_UBF_IO ((void (*)(void *))-1)

extern VALUE rb_cObject, rb_cString, rb_cHash, rb_cArray;

VALUE rb_define_module(const char *);
VALUE rb_define_module_under(VALUE, const char *);
VALUE rb_define_class_under(VALUE, const char *, VALUE);
void rb_undef_alloc_func(VALUE);
void rb_define_method(VALUE, const char *, any_function, int);
void rb_define_singleton_method(VALUE, const char *, any_function, int);
ID rb_intern2(const char *, long);
VALUE rb_funcallv(VALUE, ID, int, const VALUE *);
VALUE rb_ivar_get(VALUE, ID);
VALUE rb_ivar_set(VALUE, ID, VALUE);
VALUE rb_obj_alloc(VALUE);
VALUE rb_obj_class(VALUE);
VALUE rb_class_new_instance(int, const VALUE *, VALUE);
VALUE rb_int2inum(long);
long rb_num2long(VALUE);
VALUE rb_str_new(const char *, long);
char *rb_string_value_ptr(volatile VALUE *);
long rb_str_strlen(VALUE);
long rb_str_offset(VALUE, long);
int rb_enc_str_asciionly_p(VALUE);
VALUE rb_ary_new(void);
VALUE rb_ary_entry(VALUE, long);
void rb_ary_store(VALUE, long, VALUE);
VALUE rb_hash_dup(VALUE);
VALUE rb_hash_aset(VALUE, VALUE, VALUE);
void rb_hash_foreach(VALUE, int (*)(VALUE, VALUE, VALUE), VALUE);
VALUE rb_data_typed_object_wrap(VALUE, void *, const rb_data_type_t *);
void *rb_check_typeddata(VALUE, const rb_data_type_t *);
void rb_gc_mark(VALUE);
void rb_gc_register_address(VALUE *);
void *ruby_xcalloc(size_t, size_t);
void ruby_xfree(void *);
void *rb_thread_call_without_gvl2(void *(*)(void *), void *, void (*)(void *), void *);
void rb_thread_check_ints(void);

#endif
